"""Job files for Slurm, Kubernetes and Docker, and commands for mpirun, srun and torchrun: a request and templates."""
