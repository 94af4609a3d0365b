"""Exit statuses that several commands share."""

from __future__ import annotations

FAILED = 1
"""The status of a command that began and failed, or for which the machine has no room."""
INTERRUPTED = 130
"""The status of a command that Ctrl-C, or SIGINT, ended."""
