"""Job files for other launchers: Slurm, Kubernetes, Docker."""
