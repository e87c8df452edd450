"""The process on each machine that samples CPU, memory, disk, network and GPUs once a second."""
