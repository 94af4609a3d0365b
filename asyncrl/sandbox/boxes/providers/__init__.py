"""Providers of sandboxes: `sandbox.kind = "docker"` is the class `DockerBoxes` in `docker.py`."""
