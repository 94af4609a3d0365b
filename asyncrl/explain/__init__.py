"""Explanations of a run: its curve, its status, the diagnosis of what it waits for, alarms, advice
and summary. `views/` shows them (report, page, top, compare, rollouts), `sinks/` sends them
elsewhere.

Invariant: nothing here changes a run.
"""
