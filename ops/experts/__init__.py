"""Routed experts: the layer, its exchange of tokens, its products and its casts."""
