"""The Transformer in plain PyTorch, its loss, its weights as a file and its size; independent of ranks and runs."""
