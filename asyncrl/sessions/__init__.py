"""Experience from an agent's calls, token by token, whatever the agent does with its history. Pure:
no I/O, no clock, no torch."""
