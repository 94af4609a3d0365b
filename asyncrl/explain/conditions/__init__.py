"""Conditions that a run is judged by: what is measured, from which bound on it is worth a sentence,
and which settings help. Alarms, `why`, report and page all read `table.py`, so that one fact is
judged once and said in one way.

condition.py   the facts of a run, and what a condition is
off_policy.py  the distance between what is trained and what sampled it
answers.py     what the policy answers
sides.py       who waits for whom: idle shares
waste.py       tokens that teach nothing
disks.py       checkpoints and events that a disk does not take
starts.py      starts of agents' programs
signal.py      rewards from which nothing is learned
failures.py    attempts and calls of tools that fail
agreement.py   advice that contradicts no other
table.py       all conditions, and which of them hold
"""
