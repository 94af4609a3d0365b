"""The command line, as `python -m asyncrl`."""

from __future__ import annotations

import sys

from asyncrl.console_entry import main

if __name__ == "__main__":
    sys.exit(main())
