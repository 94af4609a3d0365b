"""Where research plugs in: which prompt next, how many rollouts, what a filter leaves, what is
trained again. Invariant: a strategy is a function of what it is given; it has no clock, no I/O and
no state of its own, so a resumed run decides as the one that was not stopped.

Each kind of strategy has a table of the names that `run.toml` gives them.
"""
