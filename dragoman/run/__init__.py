"""What a run is: its settings, the files it leaves behind, and errors for people."""
