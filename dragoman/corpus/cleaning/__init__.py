"""Cleaning of parallel text: normalising, dropping what would teach nothing or harm, and an account of it."""
