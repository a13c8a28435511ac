"""The reference transformer that a training step runs, in plain torch."""
