"""The layers of a table of plans: written down, sized and timed once for each distinct layout."""
