"""AIOB's text of compute times: reading, writing, applying."""
