"""Text to batches: reading, tokenizing, storing and drawing sentence pairs."""
