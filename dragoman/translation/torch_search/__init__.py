"""Search with PyTorch: beam search, sampling, demands on outputs, ensembles."""
