"""What mixes tokens in a layer: its sizes, weights and heads, one file per kind."""
