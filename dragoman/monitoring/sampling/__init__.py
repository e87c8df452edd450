"""What a machine does during a run, once a second: its processors, memory, disk, network interfaces and GPUs."""
