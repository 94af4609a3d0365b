"""A double of a container engine's client: `docker` or `podman`, as asyncrl calls them.

A container is a folder, its commands are processes of this machine in it, and a registry is a
folder of files whose text is an image's size, `hangs`, or an error. `calls` has what was asked.

    DOUBLE/registry/IMAGE   DOUBLE/images/IMAGE   DOUBLE/containers/NAME/   DOUBLE/calls
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

IMAGE_BYTES = 1_000_000


def on_path(folder: Path, patch: Any) -> Path:
    """Have the double's commands on PATH, by pytest's `monkeypatch`, and no cache but in `folder`.
    Returns the double's folder."""
    (folder / "bin").mkdir()
    double = folder / "double"
    for name in ("registry", "images", "containers"):
        (double / name).mkdir(parents=True)
    for client in ("docker", "podman"):
        script = folder / "bin" / client
        command = f'exec "{sys.executable}" -I -S "{__file__}" "{double}" "$@"'
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
    patch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return double


def offers(double: Path, image: str, said: str = str(IMAGE_BYTES)) -> None:
    """Have the registry offer an image, of this size, or an error in its place."""
    (double / "registry" / quote(image, safe="")).write_text(said)


def calls(double: Path) -> list[list[str]]:
    """The words of each call of the client, in order."""
    if not (double / "calls").exists():
        return []
    return [line.split("\t") for line in (double / "calls").read_text().splitlines()]


def main(double: Path, words: list[str]) -> int:
    with (double / "calls").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("\t".join(word.replace("\n", " ").replace("\t", " ") for word in words) + "\n")
    images, containers = double / "images", double / "containers"
    match words:
        case ["ps", "--quiet"]:
            return 0
        case ["info", "--format", _]:
            print("memory" if (double / "no-pids").exists() else "cpu memory pids")
            return 0
        case ["ps", *_]:
            label = next(word for word in words if word.startswith("label=")).partition("=")[2]
            for found in containers.iterdir():
                if label in (found / "words").read_text().split("\n"):
                    print(found.name)
            return 0
        case ["image", "inspect", "--format", "{{.Size}}", image]:
            found = images / quote(image, safe="")
            if not found.exists():
                return _failed(f"Error: No such image: {image}")
            print(found.read_text())
            return 0
        case ["pull", "--quiet", image]:
            return _pull(double, image)
        case ["rmi", image]:
            if any(image in (found / "words").read_text() for found in containers.iterdir()):
                return _failed("Error: image is in use by a container")
            (images / quote(image, safe="")).unlink()
            return 0
        case ["run", "--detach", "--name", name, *_]:
            image = words[words.index("/bin/sh") + 1]
            if not (images / quote(image, safe="")).exists():
                return _failed(f"Error: {image}: image not known")
            if "late" in image:  # the engine goes on with what it was asked, without its client
                if os.fork():
                    time.sleep(600)
                os.setsid()
                time.sleep(1.5)
            try:
                (containers / name / "files").mkdir(parents=True)
            except FileExistsError:
                return _failed(f'Error: the container name "{name}" is already in use')
            (containers / name / "words").write_text("\n".join(words))
            return 0
        case ["exec", "--interactive", *rest]:
            return _exec(containers, rest)
        case ["restart", "-t", "0", name]:
            _end(containers / name)
            return 0
        case ["rm", "--force", "--volumes", name]:
            if not (containers / name).exists():
                return _failed(f"Error: no such container {name}")
            _end(containers / name)
            shutil.rmtree(containers / name)
            return 0
    return _failed(f"unknown command {words}")


def _pull(double: Path, image: str) -> int:
    offered = double / "registry" / quote(image, safe="")
    with (double / "pulling").open("a") as file:
        file.write("+")
    try:
        time.sleep(0.05)
        said = offered.read_text() if offered.exists() else "Error: manifest unknown"
        if said == "hangs":
            time.sleep(600)
        if not said.isdigit():
            return _failed(said)
        (double / "images" / quote(image, safe="")).write_text(said)
        return 0
    finally:
        with (double / "pulling").open("a") as file:
            file.write("-")


def _exec(containers: Path, rest: list[str]) -> int:
    environment = {"PATH": os.environ["PATH"], "HOME": "/"}
    if rest[0] == "--env-file":
        lines = Path(rest[1]).read_text().splitlines()
        environment |= dict(line.split("=", 1) for line in lines)
        rest = rest[2:]
    container = containers / rest[0]
    if not container.exists():
        return _failed(f"Error response from daemon: No such container: {rest[0]}")
    process = subprocess.Popen(
        rest[1:], cwd=container / "files", env=environment, start_new_session=True
    )
    with (container / "groups").open("a") as file:
        file.write(f"{process.pid}\n")
    return process.wait()


def _end(container: Path) -> None:
    groups = container / "groups"
    for line in groups.read_text().split() if groups.exists() else ():
        try:
            os.killpg(int(line), signal.SIGKILL)
        except ProcessLookupError:
            continue
    groups.unlink(missing_ok=True)


def _failed(text: str) -> int:
    print(text, file=sys.stderr)
    return 125


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
