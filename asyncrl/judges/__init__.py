"""Judges: models on servers that score answers. `judge_client.py` asks one, at a `pace`, in one of
the `forms` of its API, and keeps what it said."""
