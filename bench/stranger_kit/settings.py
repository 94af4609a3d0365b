"""Settings as people mistake them: out of range, of another type, misspelt, in contradiction, and
drawn by chance."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import msgspec
import tomli_w

from asyncrl.config.fields import FIELDS
from asyncrl.config.schema import VARIABLES
from asyncrl.config.setting import Field
from stranger_kit import data
from stranger_kit.attempt import EITHER, REFUSED, RUNS, Case, Said

Maker = Callable[[random.Random, Path, Path], Case]
HOSTILE: tuple[Any, ...] = (
    *(
        "",
        " ",
        "none",
        "None",
        "null",
        "nan",
        "inf",
        "-1",
        "0",
        "1e999",
        "[]",
        "{}",
        "=",
        "a=b",
        "~",
    ),
    *(
        "\x1b[2J",
        "é漢\u202e",
        "x" * 300,
        "x" * 5000,
        "../..",
        "/dev/null",
        "/",
        "os:system",
        "json:loads",
    ),
    *(
        "module:name",
        ":",
        "a:",
        ":a",
        "a.b.c:d",
        "file:///",
        "s3://bucket/run",
        "http://127.0.0.1:9",
    ),
    *(-1, 0, 1, 2, 3, 7, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, 1e-9, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(True, False, [], {}, [1], ["x"], [[]], [{}], {"a": 1}, {"a": {"b": []}}, [None], [1, "x"]),
)


def words(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, list) and None in value):
        return "null"
    return _inline(value)


def _inline(value: Any) -> str:
    """A value in one line of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"x": value}, multiline_strings=False).partition("= ")[2].strip()


def check(settings: Mapping[str, Any], folder: Path, how: str, **more: Any) -> Case:
    """`asyncrl check` of settings, given in one of three ways."""
    base = {"task.name": "jsonl", "task.path": str(data_file(folder)), "task.eval_size": 2}
    sets = [f"--set={key}={words(value)}" for key, value in base.items() if key not in settings]
    environment = {}
    argv = ["check"]
    if how == "run.toml":
        (folder / "run.toml").write_bytes(toml(settings))
        argv.append(str(folder / "run.toml"))
    elif how == "variables":
        by_key = {key: name for name, key in VARIABLES.items()}
        for key, value in settings.items():
            text = words(value)
            if key in by_key and "\0" not in text:
                environment[by_key[key]] = text
            else:
                sets.append(f"--set={key}={text}")
    else:
        sets += [f"--set={key}={words(value)}" for key, value in settings.items()]
    return Case((*argv, *sets), environment=environment, **more)


def toml(settings: Mapping[str, Any]) -> bytes:
    """A run.toml of settings; null has no way to be written, and is left out."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            if not isinstance(inner.setdefault(section, {}), dict):
                inner[section] = {}  # a table was given as something else: the later one counts
            inner = inner[section]
        if value is not None and not (isinstance(value, list) and None in value):
            inner[name] = value
    return tomli_w.dumps(tree).encode(errors="replace")


def data_file(folder: Path) -> Path:
    """A good file of prompts."""
    lines: list[data.Line] = [{"prompt": f"{n} + 1 =", "answer": n + 1} for n in range(12)]
    return data.write(folder / "d.jsonl", lines)


def bounds(field: Field) -> list[Any]:
    """Values beyond the range of a setting."""
    found: list[Any] = []
    one = 1 if field.kind is int else 1e-6
    if get_origin(field.hint) is not None and hasattr(field.hint, "__metadata__"):
        for meta in field.hint.__metadata__:
            if isinstance(meta, msgspec.Meta):
                found += [meta.ge - one] if meta.ge is not None else []
                found += [meta.gt] if meta.gt is not None else []
                found += [meta.le + one] if meta.le is not None and meta.le < 2**62 else []
                found += [meta.lt] if meta.lt is not None else []
    return found


RANGED = [field for field in FIELDS.values() if field.kind in (int, float) and bounds(field)]


def _range(draw: random.Random, folder: Path, model: Path) -> Case:
    field = draw.choice(RANGED)
    settings = {field.key: draw.choice(bounds(field))}
    return check(settings, folder, draw.choice(WAYS), says=field.name)


WAYS = ("sets", "run.toml", "variables")


def wrong_for(field: Field) -> list[Any]:
    """Values of no type that a setting may have."""
    if field.kind is bool:
        return [2, "maybe", [], {}, 1.5]
    if field.kind is int:
        return ["many", 1.5, [], {}, True, 2**63, 10**30]
    if field.kind is float:
        return ["much", [], {}, True, float("nan"), float("inf")]
    if get_origin(field.kind) is Literal:
        return ["nonesuch", "x" * 5000, ""]
    if field.is_table:
        return [1, True, ["x"]]
    return []


def _type(draw: random.Random, folder: Path, model: Path) -> Case:
    field = draw.choice([field for field in FIELDS.values() if wrong_for(field)])
    return check(
        {field.key: draw.choice(wrong_for(field))}, folder, draw.choice(WAYS), says=field.name
    )


def _name(draw: random.Random, folder: Path, model: Path) -> Case:
    key = draw.choice([*FIELDS])
    section, _, name = key.rpartition(".")
    wrong = draw.choice(
        [
            f"{section}.{name}x",
            f"{section}.{name[1:]}",
            f"{section}x.{name}",
            f"{section}.{name}.more.and.more",
            name if "." in section else f"x.{name}",
            f"{section}.",
            f".{name}",
            "".join(draw.choices(string.printable.replace("=", "").strip(), k=9)),
        ]
    )
    if wrong in FIELDS or FIELDS[key].is_table:
        return check({"train.stepz": 1}, folder, "sets")
    return check({wrong: draw.choice([1, "a"])}, folder, "sets")


CONTRADICTIONS: tuple[tuple[dict[str, Any], frozenset[int], str], ...] = (
    ({"rollout.temperature": 0}, REFUSED, "temperature"),
    ({"train.lr": 0}, REFUSED, "lr"),
    ({"rollout.group_size": 1}, REFUSED, "group_size"),
    ({"rollout.max_new_tokens": 4096, "engine.context_tokens": 64}, REFUSED, "context_tokens"),
    ({"rollout.k_min": 99}, REFUSED, "k_min"),
    ({"task.eval_size": 12}, REFUSED, "leaves no prompt"),
    ({"task.eval_size": 99}, REFUSED, "leaves no prompt"),
    ({"task.eval_size": 11}, RUNS, ""),
    ({"task.name": "no_such_task"}, REFUSED, "no_such_task"),
    ({"task.name": "jsonl", "task.path": ""}, REFUSED, "task.path"),
    ({"task.name": "spell_backward", "task.params": {"min_word_len": 99}}, REFUSED, ""),
    (
        {"task.name": "spell_backward", "task.path": "", "task.params": {"nonsense": 1}},
        REFUSED,
        "nonsense",
    ),
    ({"task.template": "no question in it"}, REFUSED, "template"),
    ({"task.template": "{question}{question}"}, EITHER, ""),
    ({"task.template": "{0}{question}"}, EITHER, ""),
    ({"task.template": "{question"}, REFUSED, "template"),
    ({"task.chat": True}, EITHER, ""),
    ({"task.verifier": "nonesuch"}, REFUSED, "verifier"),
    ({"task.verifier": "no_such_module:judge"}, REFUSED, "no_such_module"),
    ({"task.verifier": "json:loads"}, REFUSED, ""),
    ({"task.verifier": "json:nothing"}, REFUSED, "nothing"),
    ({"model.path": "gpt2"}, REFUSED, "model.path"),
    ({"model.path": "org/model"}, REFUSED, "model.path"),
    ({"metrics.port": 1}, EITHER, ""),
    ({"metrics.port": 65536}, REFUSED, "metrics.port"),
    ({"run.page_host": "::1", "run.page_port": 9999}, EITHER, ""),
    ({"run.page_host": "no.such.host.invalid", "run.page_port": 9999}, REFUSED, "page_host"),
    ({"run.sinks": ["nonesuch"]}, REFUSED, "sinks"),
    ({"engine.kind": "nonesuch"}, REFUSED, "kind"),
    ({"engine.kind": "sglang"}, REFUSED, ""),
    ({"agent.run": "nonesuch"}, REFUSED, "names no agent"),
    ({"agent.run": ["/no/such/program"]}, EITHER, ""),
    ({"agent.run": "no_such_module:play"}, REFUSED, "no_such_module"),
    ({"staleness.max_lag": 0, "staleness.depth": 5}, EITHER, ""),
    ({"rollout.actors": 10**6}, REFUSED, ""),
    ({"train.ranks": 10**6}, REFUSED, ""),
    ({"run.copy": "nonesuch://x"}, REFUSED, "run.copy"),
    ({"run.copy": "s3://user:secret@bucket/x"}, REFUSED, "run.copy"),
    ({"train.batch_groups": 2**62, "rollout.group_size": 2**62}, EITHER, ""),
    ({"engine.slots": 2**62}, EITHER, ""),
)


def _contradiction(draw: random.Random, folder: Path, model: Path) -> Case:
    settings, right, says = draw.choice(CONTRADICTIONS)
    return check(settings, folder, draw.choice(WAYS[:2]), right=right, says=says)


def _toml(draw: random.Random, folder: Path, model: Path) -> Case:
    """A run.toml that is none."""
    good = b'[task]\nname = "jsonl"\n[train]\nsteps = 3\n'
    bad = draw.choice(
        [
            b"[task\n",
            b"task = 1\n",
            b"[[task]]\n",
            b"[task]\nname = 'a'\nname = 'b'\n",
            good.decode().encode("utf-16"),
            b"\xff" + good,
            b"x = " + b"[" * 20_000,
            b"x = " + b"9" * 6000,
            b"[train]\nsteps = 2026-01-01\n",
            b"[train]\nsteps = nan\n",
            b"[train]\nsteps = 1_0_0.5\n",
            b'{"train": {"steps": 3}}',
            b"\0" * 4096,
            b"[train.steps.more]\nx = 1\n",
            good[: draw.randrange(8, len(good) - 8)] + b'\n"',
        ]
    )
    (folder / "run.toml").write_bytes(bad)
    return Case(("check", str(folder / "run.toml")), says="run.toml")


def _both_ways(draw: random.Random, folder: Path, model: Path) -> Case:
    """A value by `--set`, beside the same by run.toml: one answer for both."""
    field = draw.choice([field for field in FIELDS.values() if field.kind in (int, float, bool)])
    value = plausible(field, draw)
    case = check({field.key: value}, folder, "sets", right=EITHER)
    text = tomli_w.dumps({"x": value})
    other = [word for word in case.argv if not word.startswith(f"--set={field.key}=")]
    (folder / "run.toml").write_bytes(toml({field.key: value}))
    other.insert(1, str(folder / "run.toml"))
    return case._replace(witness=_Twin(tuple(other), folder, text))


class _Twin:
    """The same settings, given in another way: as good a configuration, of the same values."""

    def __init__(self, argv: tuple[str, ...], folder: Path, text: str) -> None:
        self._argv, self._folder, self._text = argv, folder, text

    def __call__(self, said: Said) -> str:
        from stranger_kit.attempt import attempt

        other, _ = attempt(Case(self._argv, EITHER), self._folder)
        same = _without_time(other.out) == _without_time(said.out)
        return "" if other.status == said.status and same else f"{self._text} in run.toml: {other}"


def _without_time(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("run directory")]


def _command(draw: random.Random, folder: Path, model: Path) -> Case:
    """Arguments that are none."""
    return Case(
        draw.choice(
            [
                ("chek",),
                ("check", "--sets=train.steps=1"),
                ("check", "--set"),
                ("check", "--set=train.steps"),
                ("check", "--set=train.steps="),
                ("check", "no.toml"),
                ("check", str(folder)),
                ("train", "--resume"),
                ("train", "--resume", "nothing"),
                ("compare",),
                ("compare", "nothing", "--accuracy", "2"),
                ("rollouts", "nothing", "--prompt", "-1"),
                ("rollouts", "nothing", "--reward-below", "x"),
                ("rollouts", "nothing", "--last", "0"),
                ("simulate", "--seeds", "3:1"),
                ("simulate", "--seed", "9" * 5000),
                ("simulate", "--hours", "nan"),
                ("agent",),
                ("agent", "--join", "nothing"),
                ("agent", "--join", "nothing", "--patience", "inf"),
                ("tasks", "nonesuch"),
                ("tasks", "\x1b[2J" * 999),
                ("settings", "nonesuch"),
                ("init", "nonesuch"),
                ("init", "nothing.jsonl"),
                ("fetch", "nonesuch", "there"),
                ("calibrate", "nothing"),
                ("why", "nothing"),
                ("top", "nothing"),
                ("report", "nothing"),
                (),
            ]
        )
    )


def _nested(draw: random.Random, folder: Path, model: Path) -> Case:
    """Names within names, tables within tables, lists within lists: more than any setting has."""
    count = draw.choice([60, 300, 1000, 5000, 30_000])
    key = draw.choice(["task.params.x", "task.mix", "task.weights", "train.steps", "run", "x"])
    names = ".".join(["a"] * count)
    text = draw.choice(
        [
            f"{key}.{names} = 1\n",
            f"[{key}.{names}]\nx = 1\n",
            f"{key} = {{{names} = 1}}\n",
            f"{key} = {'{a=' * count}1{'}' * count}\n",
            f"{key} = {'[' * count}{']' * count}\n",
            f"{key}.{names.replace('a', chr(34) + 'a' + chr(34))} = 1\n",
        ]
    )
    if draw.random() < 0.4:
        return Case(("check", f"--set={text.strip().strip('[').replace(']', ' ')[:100_000]}"))
    (folder / "run.toml").write_text(text)
    return Case(("check", str(folder / "run.toml")), says="run.toml")


ODD_TOML: tuple[tuple[str, frozenset[int], str], ...] = (
    ('"train"."steps" = 3', RUNS, ""),
    ("'train' . \"steps\" = 3", RUNS, ""),
    ("train . steps = 0x3", RUNS, ""),
    ("train.steps = 1_0\nengine.slots = 0b100", RUNS, ""),
    ("train.steps = +3", RUNS, ""),
    ("[train]\r\nsteps = 3\r\n", RUNS, ""),
    ("train = {steps = 3}", RUNS, ""),
    ('"train.steps" = 3', REFUSED, "train.steps"),
    ('[train]\n"steps.x" = 3', REFUSED, "steps"),
    ('"" = 3', REFUSED, "section"),
    ('[train]\n"" = 3', REFUSED, "train"),
    ('[train]\n"\\u001b[2J" = 3', REFUSED, "train"),
    ('[train]\n"\\u0000" = 3', REFUSED, "train"),
    ("[[train]]\nsteps = 3", REFUSED, "train"),
    ("[train]\nsteps = [[3]]", REFUSED, "steps"),
    ("train.steps = 3\n[train]\nlr = 1", REFUSED, "run.toml"),
    ("[train]\nsteps = 1e1", REFUSED, "steps"),
    ("[train]\nsteps = 00:00:00", REFUSED, "steps"),
    ("[task.params]\na = 2026-01-01T00:00:00Z", REFUSED, "params"),
    ("[task.params]\na = 0x" + "f" * 40, REFUSED, "params"),
    ("engine.vllm = 1", REFUSED, "engine.vllm"),
    ("engine.vllm = []", REFUSED, "engine.vllm"),
    ("model.lora.rank.x = 1", REFUSED, "rank"),
    ("[model.lora.x]\ny = 1", REFUSED, "lora"),
    ("\ufefftrain.steps = 3", REFUSED, "run.toml"),
    ("train.steps = 3\rtrain.lr = 1", REFUSED, "run.toml"),
    ('run.name = """\n' + "x" * 2**20 + '"""', REFUSED, "run"),
    ("x" * 2**20 + " = 1", REFUSED, "run.toml"),
    ("[" + "x" * 2**19 + "]", REFUSED, "run.toml"),
    ("#" * 2**21, REFUSED, "run.toml"),
)
"""Texts of a run.toml, and what is right."""


def _odd_toml(draw: random.Random, folder: Path, model: Path) -> Case:
    text, right, says = draw.choice(ODD_TOML)
    (folder / "run.toml").write_bytes(text.encode())
    sets = ("--set=task.name=jsonl", f"--set=task.path={data_file(folder)}")
    return Case(("check", str(folder / "run.toml"), *sets, "--set=task.eval_size=2"), right, says)


MAKERS: dict[str, Maker] = {
    "names within names": _nested,
    "odd TOML": _odd_toml,
    "out of range": _range,
    "of another type": _type,
    "misspelt": _name,
    "contradictions": _contradiction,
    "no TOML": _toml,
    "in two ways": _both_ways,
    "arguments": _command,
}


# -------------------------------------------------------------------------------------------- fuzz

_SLOW = {"task.name", "agent.run", "engine.kind", "rollout.screen"}
"""Settings that other values of than the base make a check of seconds; they are drawn less."""


def plausible(field: Field, draw: random.Random) -> Any:
    """A value that may do."""
    if field.choices or field.listed:
        pick = draw.choice([*(field.choices or field.listed)])
        return [pick] if field.listed else pick
    if field.kind is bool:
        return draw.random() < 0.5
    if field.kind is int:
        return draw.choice([0, 1, 2, 3, 4, 8, 16, 64, 100, 1000, 10**6])
    if field.kind is float:
        return draw.choice([0.0, 0.1, 0.5, 1.0, 2.0, 10.0, 1e-6, 1e6])
    return draw.choice(HOSTILE)


def fuzzed(draw: random.Random, folder: Path, model: Path) -> Case:
    """A few settings by chance, some that may do, some hostile."""
    settings = {}
    for _ in range(draw.choice([1, 1, 2, 2, 3, 5, 8])):
        field = draw.choice([*FIELDS.values()])
        if field.key in _SLOW and draw.random() < 0.8:
            continue
        key = field.key
        if field.is_table and draw.random() < 0.5:
            key += "." + draw.choice(["a", "", "a.b", "é", "name", "path"])
        settings[key] = plausible(field, draw) if draw.random() < 0.5 else draw.choice(HOSTILE)
    return check(
        settings, folder, draw.choice(WAYS[:2] if draw.random() < 0.8 else WAYS), right=EITHER
    )


def fuzzed_toml(draw: random.Random, folder: Path, model: Path) -> Case:
    """A run.toml with a few bytes changed."""
    fields = draw.sample([*FIELDS.values()], 6)
    text = bytearray(toml({field.key: plausible(field, draw) for field in fields}) or b"[task]\n")
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        piece = draw.choice(
            [b"[", b"]", b"=", b'"', b"\n", b"\0", b"'''", b".", b"{", draw.randbytes(2)]
        )
        text[at : at + draw.choice([0, 0, 1, 9])] = piece
    (folder / "run.toml").write_bytes(text)
    return Case(("check", str(folder / "run.toml")), EITHER)
