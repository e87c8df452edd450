"""Lines of text: cut into sentences that fit a model, with the words they must or must not become."""
