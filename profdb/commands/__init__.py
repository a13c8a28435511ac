"""The verbs of python -m profdb."""
