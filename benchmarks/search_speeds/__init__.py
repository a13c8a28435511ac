"""How fast questions are answered: the questions, the clock beside each phase, the tables of many plans."""
