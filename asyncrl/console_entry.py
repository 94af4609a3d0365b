"""The first module of the command `asyncrl`: it imports nothing before Ctrl-C can end it without a
traceback, and Ctrl-C while Python ends is none either."""


def main() -> int:
    """Import and run the command line. Returns the exit status."""
    try:
        import signal

        from asyncrl.cli import main as command
    except KeyboardInterrupt:
        return 130  # asyncrl.exit_status.INTERRUPTED
    status = command()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends what is left to do at the exit
    return status
