"""What is printed and written of a search: tables, reasons, files."""
