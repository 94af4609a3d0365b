"""`python -m asyncrl.engines.sglang.child COMMAND…`: become a command that dies with its parent. Invariant: the command has this process's
number, session, output and environment, and gets SIGKILL when the process that started this one ends, however that ends.

SGLang does not ask for that signal itself; the kernel keeps the wish across the exec of any program that is not setuid.
"""

from __future__ import annotations

import os
import sys

from asyncrl.process import become_child


def main() -> None:
    become_child()
    command = sys.argv[1:]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}; engine.sglang.launch is the command of a Python that has SGLang")


if __name__ == "__main__":
    main()
