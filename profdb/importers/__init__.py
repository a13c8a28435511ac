"""Readers of other tools' measurements. A bad file raises ProfileError with line and reason, and
nothing in it is imported."""
