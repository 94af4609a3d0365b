"""Strategies: the choice of the next prompt, the number of rollouts of a prompt, the end of a run
whose filter leaves nothing, the choice of groups to train again. Invariant: a strategy is a
function of its arguments. It has no clock, no I/O and no state of its own, so a resumed run decides
like one that was not stopped.
"""
