"""Job files for Slurm, Kubernetes and Docker: a request, and the templates it is rendered with."""
