"""Many processes as one: starting them, what they know of each other, how their gradients meet."""
