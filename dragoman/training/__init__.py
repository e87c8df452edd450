"""Training: the loop, one update, checkpoints, and how a run starts, continues and ends."""
