"""What runs again in the backward: whole layers, named modules, every second product."""
