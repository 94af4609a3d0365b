"""The parts of `bench/strangers.py`: one attempt with the command, and inputs of each kind."""
