"""A double of `docker`, whose containers are files of a folder: `docker run --detach --name NAME`,
`docker rm --force NAME`.

As with the engine itself a container comes into being some time after it was asked for, whatever
becomes of the client. The folder has the containers, `creating` those on their way, and `log` a
line for each step with the number of containers on their way then.

    install(folder)    writes the command into `folder/bin`, which goes first on PATH
"""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = """#!{python} -SE
import fcntl, os, random, sys, time
from pathlib import Path

HOME = Path({home!r})
THINGS, CREATING = HOME / "containers", HOME / "creating"

def noted(step, name):
    with (HOME / "log").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write(f"{{time.time():.3f}} {{step}} {{name}} {{len(os.listdir(CREATING))}}\\n")

def create(name):
    # the engine: it has left the client's group and session
    time.sleep(random.uniform(0, {most_s}))
    (THINGS / name).touch()
    (CREATING / name).unlink()
    noted("created", name)

match sys.argv[1]:
    case "run":
        name = sys.argv[sys.argv.index("--name") + 1]
        (CREATING / name).touch()
        noted("asked", name)
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.close(1)
                create(name)
            os._exit(0)
        while not (THINGS / name).exists():
            time.sleep(0.005)
        print(name)
    case "rm":
        name = sys.argv[-1]
        if not (THINGS / name).exists():
            sys.exit(f"Error response from daemon: No such container: {{name}}")
        (THINGS / name).unlink()
        noted("removed", name)
"""


def install(folder: Path, most_s: float = 0.3) -> Path:
    """Write the command, and return the folder that goes first on PATH. A container is on its way
    for at most `most_s` seconds."""
    path = folder / "bin"
    for made in (path, folder / "containers", folder / "creating"):
        made.mkdir(parents=True)
    text = COMMAND.format(python=sys.executable, home=str(folder), most_s=most_s)
    (path / "docker").write_text(text)
    (path / "docker").chmod(0o755)
    return path


def containers(folder: Path) -> set[str]:
    """The containers that there are, and those on their way."""
    return {one.name for kind in ("containers", "creating") for one in (folder / kind).iterdir()}
