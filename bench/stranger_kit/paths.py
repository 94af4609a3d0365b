"""Paths that cannot be: too long, below a folder that may not be searched, links, pipes, devices,
files without end. Each verb and setting that takes a path is given each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from stranger_kit import data
from stranger_kit.attempt import EITHER, LOOKED, REFUSED, Case
from stranger_kit.models import STRANGE, no_file

Maker = Callable[[random.Random, Path, Path], Case]
LINES: list[data.Line] = [{"prompt": f"{n} + 1 =", "answer": n + 1} for n in range(12)]

VERBS: dict[str, tuple[str, ...]] = {
    "why": ("why", "@"),
    "report": ("report", "@"),
    "compare": ("compare", "@", "@"),
    "rollouts": ("rollouts", "@"),
    "top": ("top", "@"),
    "calibrate": ("calibrate", "@"),
    "resume": ("train", "--resume", "@"),
    "run.toml": ("check", "@"),
    "train": ("train", "@"),
    "simulate": ("simulate", "@"),
    "models": ("simulate", "#toml", "--models", "@"),
    "join": ("agent", "--join", "@"),
    "init": ("init", "@"),
    "fetch from": ("fetch", "file://@", "#new"),
}
"""Verbs that read a path: `@` stands for it."""
SETTINGS = (
    *("task.path", "task.eval_path", "model.path", "run.dir", "run.copy"),
    *("reference.path", "teacher.path", "supervised.path", "reference.api_key_file"),
)
BESIDE = {
    "reference.path": ("reference.coefficient=0.1",),
    "reference.api_key_file": ("reference.coefficient=0.1", "reference.path=#model"),
    "teacher.path": ("teacher.coefficient=0.1",),
    "supervised.path": ("supervised.coefficient=0.1",),
    "task.eval_path": ("task.eval_size=2",),
}
"""Settings without which the path is not looked at."""
MAY_BE_NEW = {"run.dir", "run.copy"}
"""Settings of a directory that need not be there yet."""


def _path(draw: random.Random, folder: Path, kind: str) -> str:
    """A path of this kind."""
    match kind:
        case "closed":
            closed = folder / "closed"
            (closed / "in").mkdir(parents=True)
            (closed / "in" / "run.toml").write_text("")
            closed.chmod(draw.choice([0, 0o600, 0o400]))
            return str(closed / draw.choice(["in", "in/deeper", "in/run.toml", "none.jsonl"]))
        case "unreadable":
            there = folder / draw.choice(["there", "there.jsonl", "there.toml"])
            there.write_text("{}")
            there.chmod(0)
            return str(there)
        case "long name":
            return str(folder / ("n" * draw.choice([256, 300, 1000])))
        case "long path":
            return "/".join([str(folder), *["n" * 200] * draw.choice([21, 30])])
        case "deep":
            return str(folder) + "/n" * draw.choice([3000, 10_000])
        case "below a file":
            (folder / "file").write_text("x")
            return str(folder / "file" / "below")
        case "odd name":
            return str(
                folder / draw.choice(["\x1b[2J", "a\nb", "\u202ex", "{question}", "%s", "é"])
            )
        case "odd":
            return draw.choice(
                ["", " ", "~nonesuch/x", "~", ".", "/", "..", "-", "//", "/proc/1/x"]
            )
        case _:
            no_file(folder / "odd", kind)
            return str(folder / "odd")


KINDS = (
    *("closed", "unreadable", "long name", "long path", "deep", "below a file", "odd name", "odd"),
    *STRANGE,
)


def _read(verb: str) -> Maker:
    """A verb that reads such a path."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        kind = draw.choice(KINDS)
        path = _path(draw, folder, kind)
        if verb in ("resume", "train") and kind in ("odd", "null"):
            kind, path = "long name", str(folder / ("n" * 300))  # else a run would begin
        (folder / "base.toml").write_text(f'[task]\nname = "jsonl"\npath = "{folder}/d.jsonl"\n')
        data.write(folder / "d.jsonl", LINES)
        argv = tuple(
            word.replace("@", path)
            .replace("#toml", str(folder / "base.toml"))
            .replace("#new", str(folder / "new"))
            for word in VERBS[verb]
        )
        right = LOOKED if kind in ("odd", "folder", "null") else REFUSED
        return Case(argv, right, privileged=False, may=("cwd/run.toml", "home/run.toml"))

    return make


def _setting(key: str) -> Maker:
    """A setting of such a path."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        kind = draw.choice(KINDS)
        path = _path(draw, folder, kind)
        data.write(folder / "d.jsonl", LINES)
        sets = {"task.name": "jsonl", "task.path": str(folder / "d.jsonl"), "task.eval_size": "0"}
        sets |= dict(
            text.replace("#model", str(model)).split("=", 1) for text in BESIDE.get(key, ())
        )
        sets[key] = path
        may_be = kind in ("odd", "null") or (key in MAY_BE_NEW and kind in ("odd name", "folder"))
        return Case(
            ("check", *(f"--set={name}={value}" for name, value in sets.items())),
            EITHER if may_be else REFUSED,
            privileged=False,
        )

    return make


def _output(verb: str) -> Maker:
    """A verb that writes to such a path, of a run that is none: what is there stays."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        kind = draw.choice(KINDS)
        path = _path(draw, folder, kind) or "x"
        run = folder / "run"
        run.mkdir()
        (run / "run.toml").write_text("")
        ending = ".jsonl" if verb == "rollouts" and draw.random() < 0.5 else ""
        argv = (verb, "file:///nonesuch") if verb == "fetch" else (verb, str(run), "-o")
        # what it is told to write may be there then
        named = (Path(path + ending).name,) if kind == "odd name" else ()
        may = ("run/", "odd", *named)
        return Case((*argv, path + ending), LOOKED, privileged=False, may=may)

    return make


MAKERS: dict[str, Maker] = {
    **{verb: _read(verb) for verb in VERBS},
    **{key: _setting(key) for key in SETTINGS},
    **{f"{verb} to": _output(verb) for verb in ("rollouts", "report", "calibrate", "fetch")},
}
