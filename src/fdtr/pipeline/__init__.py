"""Everything at once: a whole study in one table, the demo, and the draft of a study file."""
