"""What a plan holds on a device."""
