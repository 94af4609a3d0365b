"""The first module of the command `asyncrl`: it imports nothing before Ctrl-C can end it without a
traceback."""

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def main() -> int:
    """Import and run the command line. Returns the exit status."""
    try:
        from asyncrl.cli import main as command
    except KeyboardInterrupt:
        return INTERRUPTED
    return command()
