"""An answer as one page for a browser, with nothing outside the file."""
