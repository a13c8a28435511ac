"""Hugging Face ``config.json`` files, a file a family of model types."""
