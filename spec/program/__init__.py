"""What every command has in common: how it reads its options and how it ends."""
