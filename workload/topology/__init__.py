"""Network topologies in the text form SimAI's ns-3 front end reads: templates, checker, picture."""
