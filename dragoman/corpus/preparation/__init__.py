"""Raw parallel text to a prepared corpus, as pieces of work that depend on files only: see `corpus/prepare.py`."""
