"""The Transformer as plain PyTorch; knows nothing of ranks or files (weights apart)."""
