"""Cleans parallel text: normalises it, drops useless or harmful pairs, and reports what was dropped."""
