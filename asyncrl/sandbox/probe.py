"""`python -m asyncrl.sandbox.probe` makes a sandbox and a fork in it, and prints what works:
the support of this machine is tested, not guessed."""

from __future__ import annotations

import os
import signal
import sys

from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.support import Support
from asyncrl.sandbox.zygote import Zygote


def main() -> None:
    try:
        zygote = Zygote.enter(Limits(), keep=(), quiet=True)
        reader, writer = os.pipe()
        pid = zygote.fork(writer)
        if not pid:
            os.write(writer, b"!")
            signal.pause()
        os.close(writer)
        works = os.read(reader, 1) == b"!"
        zygote.end_all()
    except OSError as error:
        print(Support(str(error.strerror or error), 0).encode())
    else:
        missing = "" if works else "a process in it ended at once"
        print(Support(missing, zygote.landlock).encode())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
