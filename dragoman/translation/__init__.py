"""Translation: beam search for a batch, and translation of lines of text."""
