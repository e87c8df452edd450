"""Understanding a run: what it will cost, what it cost, and why. Reads files; needs no torch."""
