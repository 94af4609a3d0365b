"""The first module of the command `asyncrl`: it imports nothing before Ctrl-C can end it without a
traceback."""


def main() -> int:
    """Import and run the command line. Returns the exit status."""
    try:
        from asyncrl.cli import main as command
    except KeyboardInterrupt:
        return 130  # asyncrl.exit_status.INTERRUPTED
    return command()
