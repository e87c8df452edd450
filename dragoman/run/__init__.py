"""What a run is: its settings, the folder it leaves, and how problems are told to people."""
