"""Configs read as data: InternLM-style Python, Hugging Face JSON, TOML."""
