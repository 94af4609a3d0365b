"""Strategies: the next prompt, the rollouts of a prompt, the end of a run whose filter leaves
nothing, the groups that are trained again.

Invariant: a strategy is a function of what it is given. It has no clock, no I/O and no state of its
own, so a resumed run decides as the one that was not stopped.
"""
