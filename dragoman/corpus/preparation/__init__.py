"""Turns raw parallel text into a prepared corpus, in stages of tasks that read and write files; see `prepare.py`."""
