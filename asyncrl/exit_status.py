"""Exit statuses that several commands share."""

from __future__ import annotations

INTERRUPTED = 130
"""The status of a command that Ctrl-C, or SIGINT, ended."""
