"""Exports of the shipped configs, and the frameworks' own parsers that are to take them."""
