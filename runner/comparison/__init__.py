"""A measured run beside its prediction: results of ``train``, logs of frameworks, what their gap suggests."""
