"""A module of asyncrl that is run for a caller and ends with it.

`python -m asyncrl.runtime.processes.tied_module MODULE ARGUMENT…` is tied before the module's
imports, which may take long; then it is the module's `main`.
"""

from __future__ import annotations

import importlib
import sys

from asyncrl.runtime.processes.process import become_child


def main() -> None:
    """Run the module's `main`, and end with the status that it returns."""
    become_child()
    del sys.argv[0]
    sys.exit(importlib.import_module(sys.argv[0]).main())


if __name__ == "__main__":
    main()
