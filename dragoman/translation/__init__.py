"""Using the model: search for the best translation of a batch, and translation of lines of text."""
