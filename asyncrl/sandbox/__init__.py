"""A sandbox for code that somebody else wrote: answers that a task executes, and later what agents'
tools run."""
