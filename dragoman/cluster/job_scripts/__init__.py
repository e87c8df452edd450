"""Ready job files for the schedulers other people run: Slurm, Kubernetes, Docker Compose."""
