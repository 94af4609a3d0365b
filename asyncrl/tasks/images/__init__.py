"""Images of prompts: found in data, decoded in a process that can be killed, and kept by their
hash."""
