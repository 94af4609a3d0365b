"""Sizes of clusters: a run's own settings in virtual time, with models of its slow parts, which are
fitted to runs; a search for better settings; a run of a thousand engines."""
