"""What is asked and what is answered: the problem, the request it comes from, the answer."""
