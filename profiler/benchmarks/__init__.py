"""What is launched for each kind of case, one small file each."""
