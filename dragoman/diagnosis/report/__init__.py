"""The report: what a run's owner asks, answered from the files of the run."""
