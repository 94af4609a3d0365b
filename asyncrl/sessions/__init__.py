"""What an agent's calls come to as experience, token by token, whatever it does with its history.
Pure: no I/O, no clock, no torch."""
