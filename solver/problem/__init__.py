"""The question and its answer: the request, the problem made of it, the answer of a plan."""
