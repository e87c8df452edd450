"""Learning: the loop, one step of it, and what a run needs to continue."""
