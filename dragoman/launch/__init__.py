"""Starting and supervising workers on one or many hosts; job files for other launchers."""
