"""How a time is asked for: queries, the answer with its origin, and what is remembered between questions."""
