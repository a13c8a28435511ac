"""The one command of an installed project: every program behind one name."""
