"""Checks of what a GPU alone can show, each in a process of its own (`bench/gpu.py`).

`check` has the words, `kit` the list, `harness` runs it, and `child` is the process of one check.
These need the standard library alone, because a bare machine has no more until `wheels` has
installed the rest. The other files are the checks, by subject.
"""
