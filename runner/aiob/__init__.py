"""Each submodule of a model timed on one device, as AICB's AIOB does."""
