"""One priced plan as a reader sees it: totals, their interval, MFU."""
