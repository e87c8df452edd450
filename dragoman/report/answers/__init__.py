"""The eleven answers of a report, by topic."""
