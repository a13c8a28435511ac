"""Cases of a sweep."""
