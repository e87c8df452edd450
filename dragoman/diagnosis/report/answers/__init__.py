"""The eleven questions of a run's owner, each answered from the same findings."""
