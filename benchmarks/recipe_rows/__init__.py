"""Hand-tuned recipes of a framework, read from a CSV file of one recipe a row."""
