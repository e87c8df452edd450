"""The work that workers of a run do together: find each other, sum gradients, report their state, measure links."""
