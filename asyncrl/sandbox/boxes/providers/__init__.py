"""Providers of sandboxes, each a file by its name in `sandbox.kind`."""
