"""Frozen policies of a game: past versions as opponents."""
