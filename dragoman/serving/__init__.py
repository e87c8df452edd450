"""Serving: translation over HTTP, with a page for people."""
