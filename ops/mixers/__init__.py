"""What mixes tokens inside a layer."""
