"""The report of a run: eleven answers, as a page, as text and as JSON; and the comparison of runs."""
