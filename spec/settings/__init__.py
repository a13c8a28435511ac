"""What a user may set: tables of keys, each read off the dataclass that holds its value."""
