"""What a search tries beyond its degrees: as little recomputation as memory asks for, layers on the host,
uneven stages.
"""
