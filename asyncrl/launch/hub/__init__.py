"""Models by name: found in a hub's cache on this machine, or downloaded."""
