"""A sandbox for code that somebody else wrote and that a process of ours executes: answers of a
task that evaluates them. Foreign programs are begun by `asyncrl.sandbox.programs`, which uses parts
of it."""
