"""Our own launcher: a run's workers started, watched and started again, on this machine or on many."""
