"""Files of any size: formats of lines, blocks that arrive, and work that continues after an interruption."""
