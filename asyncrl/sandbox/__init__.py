"""A sandbox for foreign code that a process of ours executes: answers of a task that evaluates
them. `asyncrl.sandbox.programs` starts foreign programs, and uses parts of it."""
