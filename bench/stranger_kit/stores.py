"""Stores for `asyncrl fetch` that somebody else has filled, and URLs that are none. The store is
written here, by what docs/reliability.md says of it, and not by the product."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stranger_kit.attempt import LOOKED, REFUSED, RUNS, Case, Said
from stranger_kit.models import STRANGE, no_file

Maker = Callable[[random.Random, Path, Path], Case]
Files = dict[str, dict[str, Any]]


def store(folder: Path, model: Path) -> tuple[Path, Files]:
    """A good store of the run, and its manifest's files."""
    there, files = folder / "store", Files()
    (there / "objects").mkdir(parents=True)
    run = model.parent / "run"
    for name in ("run.toml", "metrics.jsonl", "origins.json", "journal.sqlite"):
        contents = (run / name).read_bytes()
        digest = hashlib.blake2b(contents, digest_size=16).hexdigest()
        (there / "objects" / digest).write_bytes(contents)
        files[name] = {"size": len(contents), "blake2b": digest}
    return there, files


def fetched(folder: Path, there: Path, manifest: Any, **more: Any) -> Case:
    """A fetch of the store with this manifest."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    if not (there / "manifest.json").exists() and not (there / "manifest.json").is_symlink():
        (there / "manifest.json").write_bytes(text)
    settings: dict[str, Any] = {
        "right": REFUSED,
        "says": "not fetched|no copy|cannot be written|make room",
    } | more
    return Case(("fetch", there.as_uri(), str(folder / "new")), **settings)


def _good(draw: random.Random, folder: Path, model: Path) -> Case:
    there, files = store(folder, model)

    def same(said: Said) -> str:
        got = {path.name: path.read_bytes() for path in (folder / "new").iterdir()}
        want = {
            name: (there / "objects" / file["blake2b"]).read_bytes() for name, file in files.items()
        }
        return "" if got == want else f"fetched {sorted(got)}, and the store has {sorted(want)}"

    case = fetched(folder, there, {"id": "1", "files": files})
    return case._replace(right=RUNS, says="", may=("new",), witness=same)


def _name(draw: random.Random, folder: Path, model: Path) -> Case:
    """A name of a file that no run has."""
    there, files = store(folder, model)
    name = draw.choice(
        [
            *(
                "../../home/.profile",
                "/etc/cron.d/x",
                "logs/x",
                "",
                ".",
                "key",
                "run.toml/",
                "a\0b",
            ),
            *("checkpoints/step-000001/../../x", "checkpoints/step-١١١١١١/model.safetensors"),
            *("checkpoints/step-1/x", "checkpoints/step-000001/.x", "RUN.TOML", "run.toml\n"),
            *("checkpoints/step-000001/" + "x" * 300, "initial", "launcher.sock", "./run.toml"),
        ]
    )
    files[name] = files["run.toml"]
    return fetched(folder, there, {"id": "1", "files": files})


def _size(draw: random.Random, folder: Path, model: Path) -> Case:
    """Sizes that are not true, or more than there is room for."""
    there, files = store(folder, model)
    name = draw.choice([*files])
    files[name]["size"] = draw.choice(
        [-1, 0, 2**40, 2**62, 2**63, 2**64, 10**30, 1.5, "1", None, files[name]["size"] + 1]
    )
    return fetched(folder, there, {"id": "1", "files": files})


def _object(draw: random.Random, folder: Path, model: Path) -> Case:
    """An object that is none, or other bytes."""
    there, files = store(folder, model)
    path = there / "objects" / files[draw.choice([*files])]["blake2b"]
    if draw.random() < 0.6:
        no_file(path, draw.choice(STRANGE))
    else:
        text = path.read_bytes()
        path.write_bytes(draw.choice([b"", text[:-1], text + b"x", draw.randbytes(len(text))]))
    return fetched(folder, there, {"id": "1", "files": files})


def _manifest(draw: random.Random, folder: Path, model: Path) -> Case:
    """A manifest that is none."""
    there, files = store(folder, model)
    if draw.random() < 0.5:
        no_file(there / "manifest.json", draw.choice(STRANGE))
    bad = draw.choice(
        [
            b"",
            b"{}",
            b"[" * 100_000,
            b'{"id": 1, "files": []}',
            b'{"id": "1", "files": {"run.toml": {"size": 1, "blake2b": "../../x"}}}',
            b'{"id": "1", "files": {"run.toml": {"size": 1}}}',
            json.dumps({"id": "1", "files": files}).encode("utf-16"),
            b"\0" * (17 << 20),
            b'{"id": "1", "files": {"run.toml": {"size": 1, "blake2b": "%s"}}}' % (b"A" * 32),
        ]
    )
    return fetched(folder, there, bad)


def _url(draw: random.Random, folder: Path, model: Path) -> Case:
    """A URL that is none, or has a secret in it: it is not shown."""
    url = draw.choice(
        [
            *("", "x", "http://127.0.0.1:9/x", "s3://", "s3://user:hunter2@bucket/x", "file://"),
            *("s3://bucket/x?secret=hunter2", "file:///nonesuch/x", "file://host/x", "az://"),
            *("ftp://x", "s3:/x", "://", "s3://[::1", "s3://a b/c", "gs://\x1b[2J", "memory://"),
            *("file:///" + "x" * 5000, "file:///dev/zero", "file:///%00", "file:///proc/1/root"),
        ]
    )

    def hides(said: Said) -> str:
        return "the secret is shown" if "hunter2" in said.err + said.out else ""

    case = Case(("fetch", url, str(folder / "new")), REFUSED, witness=hides, privileged=False)
    # no net: stores that would be looked for elsewhere are refused at once
    return case._replace(
        environment={
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_ENDPOINT": "http://127.0.0.1:9",
            "AWS_REGION": "x",
        },
        seconds=150.0,
    )


def _target(draw: random.Random, folder: Path, model: Path) -> Case:
    """A target that is there, or cannot be."""
    there, files = store(folder, model)
    target = folder / "new"
    kind = draw.choice([*STRANGE, "long", "closed", "full"])
    if kind == "long":
        target = folder / ("n" * 300)
    elif kind == "closed":
        (folder / "closed").mkdir()
        (folder / "closed").chmod(0)
        target = folder / "closed" / "new"
    elif kind == "full":
        target.mkdir()
        (target / "x").write_text("x")
    else:
        no_file(target, kind)
    case = fetched(folder, there, {"id": "1", "files": files})
    right = LOOKED if kind in ("folder", "nowhere") else REFUSED
    return case._replace(
        argv=("fetch", there.as_uri(), str(target)),
        right=right,
        says="",
        privileged=os.geteuid() != 0,
        may=("new", "nowhere"),
    )


MAKERS: dict[str, Maker] = {
    "good": _good,
    "names": _name,
    "sizes": _size,
    "objects": _object,
    "manifests": _manifest,
    "URLs": _url,
    "targets": _target,
}
