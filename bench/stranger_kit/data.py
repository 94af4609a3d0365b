"""Files of prompts as people bring them, and a reader of them that is not the product's.

Each maker writes one file and says what is right: which line is refused, or how many prompts train
and how many of them leave no room for an answer.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stranger_kit.attempt import EITHER, REFUSED, RUNS, Case, Said

CONTEXT = 64
ANSWER = 8
LINE_BYTES = 16 * 2**20
Line = dict[str, Any] | bytes


def check(
    file: Path,
    model: Path,
    *more: str,
    held_out: int = 2,
    right: frozenset[int] = RUNS,
    says: str = "",
) -> Case:
    """`asyncrl check` of a file, with a witness of what it says."""
    settings = {
        "task.name": "jsonl",
        "task.path": file,
        "task.eval_size": held_out,
        "model.path": model,
        "rollout.max_new_tokens": ANSWER,
        "engine.context_tokens": CONTEXT,
    }
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    return Case(
        ("check", *sets, *(f"--set={more_}" for more_ in more)),
        right,
        says,
        lambda said: counted(said, file, held_out),
    )


def judged(file: Path, model: Path, *more: str, held_out: int = 2, verifier: str = "exact") -> Case:
    """The same, and the right answer follows from the reader here."""
    wrong, prompts, sure = read(file, verifier)
    right, says = RUNS, ""
    if not sure:
        return check(file, model, *more, held_out=held_out, right=EITHER)
    if wrong is not None:
        right, says = REFUSED, rf"{re.escape(file.name)}, line {wrong}\b"
    elif not prompts:
        right, says = REFUSED, "no rows"
    elif not (trains := training(prompts, held_out)):
        right, says = REFUSED, "leaves no prompt"
    elif not any(map(fits, trains)):
        right, says = REFUSED, "nothing can be trained"
    return check(file, model, *more, held_out=held_out, right=right, says=says)


def read(file: Path, verifier: str = "exact") -> tuple[int | None, list[str], bool]:
    """The number of the first line that is wrong, the prompts, and False where formats of JSON
    leave open what is right."""
    prompts, sure = list[str](), True
    data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            data = data.decode("utf-16").encode()
        except UnicodeError:
            return 1, [], False
    if data.lstrip().startswith(b"["):
        try:
            data = b"\n".join(json.dumps(row).encode() for row in json.loads(data))
        except (ValueError, RecursionError):
            return 1, [], False
        if not data:
            return 1, [], False
        sure = False  # rows have other numbers than lines
    for number, text in enumerate(data.split(b"\n"), 1):
        if len(text) > LINE_BYTES:
            return number, [], sure
        if not text.strip():
            continue
        try:
            entry = json.loads(text.decode(), parse_int=_whole)
        except ValueError:
            return number, [], sure
        except RecursionError:
            return number, [], False
        plain = isinstance(entry, dict)
        if plain and (_odd(entry) or _surrogate(entry) or _twice(text)):
            sure = False
        if plain and isinstance(entry.get("prompt"), list) and entry["prompt"]:
            sure = False  # ids, or messages
        if not plain or not isinstance(prompt := entry.get("prompt"), str) or not prompt.strip():
            return number, [], sure
        own = entry.get("verifier", "")
        answer = entry.get("answer")
        if isinstance(answer, list) and len(answer) == 1:
            (answer,) = answer
        if not isinstance(answer, str | int | float) or not _finite(answer):
            return number, [], sure
        if not isinstance(own, str) or own not in ("", "exact", "number"):
            return number, [], sure and own != "run"
        if (own or verifier) == "number" and not _is_number(str(answer)):
            return number, [], sure
        prompts.append(prompt)
    return None, prompts, sure


def _finite(answer: object) -> bool:
    return not isinstance(answer, float) or math.isfinite(answer)


def _whole(text: str) -> int:
    return int(text[:4000])


def _surrogate(value: object) -> bool:
    return any("\ud800" <= mark <= "\udfff" for mark in str(value)) or "\\ud" in repr(value).lower()


def _odd(value: object, depth: int = 0) -> bool:
    """True if it has numbers or depths that readers of JSON take for different ones."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 50 or any(_odd(item, depth + 1) for item in inner)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return not -(2**63) <= value < 2**63
    return False


def _twice(text: bytes) -> bool:
    """True if an object names a key twice."""
    found = []

    def pairs(listed: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len({key for key, _ in listed}) < len(listed))
        return dict(listed)

    json.loads(text.decode(), object_pairs_hook=pairs, parse_int=_whole)
    return any(found)


def _is_number(text: str) -> bool:
    return bool(
        re.fullmatch(r"\s*[+-]?(\d[\d,]*\.?[\d,]*|\.\d[\d,]*)(e[+-]?\d+)?\s*", text, re.I | re.A)
    )


def training(prompts: Sequence[str], held_out: int) -> list[str]:
    """The prompts that train: those before the held-out ones that no held-out line has."""
    first = max(len(prompts) - held_out, 0)
    held = set(prompts[first:])
    return [prompt for prompt in prompts[:first] if prompt not in held]


def fits(prompt: str) -> bool:
    """True if an answer has room behind it: the tokenizer of the model here is one of bytes."""
    text = prompt + "\n"
    special = sum(text.count(name) for name in ("<|end|>", "<|padding|>"))
    spelt = sum(text.count(name) * len(name) for name in ("<|end|>", "<|padding|>"))
    return len(text.encode(errors="replace")) - spelt + special + ANSWER <= CONTEXT


def counted(said: Said, file: Path, held_out: int) -> str:
    """A difference between the numbers of prompts that `check` says and those of the reader."""
    wrong, prompts, sure = read(file)
    if wrong is not None or not sure:
        return ""
    trains = training(prompts, held_out)
    shown = re.search(r"([\d,]+) prompts of ([\d,]+)", said.out)
    if not shown or int(shown[2].replace(",", "")) != len(trains):
        return f"{len(trains)} lines train, and check says {shown and shown[0]}"
    shared = max(len(prompts) - held_out, 0) - len(trains)
    note = re.search(r"([\d,]+) rows have the prompt of a held-out one", said.out)
    if shared != (int(note[1].replace(",", "")) if note else 0):
        return f"{shared} lines have a held-out prompt, and check says {note and note[0]}"
    again = len(trains) - len({*trains})
    note = re.search(r"([\d,]+) rows? ha(?:s|ve) the prompt of an earlier row", said.out)
    if again != (int(note[1].replace(",", "")) if note else 0):
        return f"{again} lines repeat a prompt, and check says {note and note[0]}"
    if len(trains) <= 256:
        unfit = sum(not fits(prompt) for prompt in trains)
        note = re.search(
            r"of (\d+) training prompts that were checked (\d+) leave no room", said.out
        )
        if note and int(note[1]) < len(trains):  # it had no time for more
            return ""
        if unfit != (int(note[2]) if note else 0):
            return f"{unfit} prompts leave no room, and check says {note and note[0]}"
    return ""


# ------------------------------------------------------------------------------------------ makers


def text(draw: random.Random, most: int = 12, letters: str = string.ascii_letters + " é漢") -> str:
    """A prompt without white space at its ends."""
    return "x" + "".join(draw.choices(letters, k=draw.randint(0, most))).strip() + "="


def good(draw: random.Random, count: int | None = None) -> list[Line]:
    """Lines that train."""
    return [
        {"prompt": f"{n} {text(draw)}", "answer": draw.choice([n, str(n), float(n)])}
        for n in range(count or draw.randint(4, 40))
    ]


def write(file: Path, lines: Sequence[Line], end: bytes = b"\n") -> Path:
    """Write a file; bytes are lines as they are."""
    file.write_bytes(
        b"".join(
            (line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode())
            + end
            for line in lines
        )
    )
    return file


Maker = Callable[[random.Random, Path, Path], Case]


def among(*odd: Callable[[random.Random], Line], held_out: int = 2) -> Maker:
    """One of these lines at a random place of a good file."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        lines = good(draw)
        lines.insert(draw.randrange(len(lines)), draw.choice(odd)(draw))
        return judged(write(folder / "d.jsonl", lines), model, held_out=held_out)

    return make


def whole(form: Callable[[random.Random, list[Line]], bytes]) -> Maker:
    """A good file as other bytes."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        (folder / "d.jsonl").write_bytes(form(draw, good(draw)))
        return judged(folder / "d.jsonl", model)

    return make


def _plain(lines: Sequence[Line]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _beyond(draw: random.Random, folder: Path, model: Path) -> Case:
    """A token that the embedding has no row for, in one prompt: a note says so."""
    lines = good(draw)
    lines.insert(0, {"prompt": "call <tool> now", "answer": "1"})
    beyond = folder / "model"
    beyond.mkdir()
    for path in model.iterdir():
        (beyond / path.name).symlink_to(path)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer["added_tokens"] += [
        {"id": id_, "content": "<tool>" if id_ == rows else f"<free{id_}>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for id_ in range(258, rows + 1)
    ]
    (beyond / "tokenizer.json").unlink()
    (beyond / "tokenizer.json").write_text(json.dumps(tokenizer))
    case = check(write(folder / "d.jsonl", lines), beyond)
    return case._replace(
        witness=lambda said: (
            "" if re.search(r"1 have a token that the model's embedding", said.out) else said.out
        )
    )


def _duplicates(draw: random.Random, folder: Path, model: Path) -> Case:
    lines = good(draw, 20)
    for _ in range(draw.randint(1, 12)):
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    held_out = draw.randint(0, len(lines) + 2)
    return judged(write(folder / "d.jsonl", lines), model, held_out=held_out)


def _long(draw: random.Random, folder: Path, model: Path) -> Case:
    most = draw.choice([60, 100, 3000])
    lines = [{"prompt": f"{n}" + "y" * draw.randint(1, most), "answer": "1"} for n in range(30)]
    return judged(write(folder / "d.jsonl", lines), model, held_out=draw.choice([0, 2, 5]))


def _numbers(draw: random.Random, folder: Path, model: Path) -> Case:
    lines = [line | {"verifier": "number"} for line in good(draw) if isinstance(line, dict)]
    lines[draw.randrange(len(lines))]["answer"] = draw.choice(
        ["", "one", "1e", "--1", "NaN", "1 2", "0x10", "1e400", "1,000", ".5", "1_000", "∞", "٣"]
    )
    return judged(write(folder / "d.jsonl", lines), model)


FORMATS: dict[str, Callable[[int], dict[str, Any]]] = {
    "gsm8k": lambda n: {"question": f"{n}?", "answer": f"so\n#### {n}"},
    "math": lambda n: {"problem": f"${n}$?", "solution": f"\\boxed{{{n}}}"},
    "chat": lambda n: {"messages": [{"role": "user", "content": f"{n} ="}]},
    "verl": lambda n: {
        "data_source": "own",
        "prompt": [{"role": "user", "content": f"{n} ="}],
        "reward_model": {"ground_truth": str(n)},
    },
    "rlvr": lambda n: {"messages": [], "ground_truth": str(n), "dataset": "own"},
    "label": lambda n: {"prompt": f"{n} =", "label": str(n)},
    "list of answers": lambda n: {"prompt": f"{n} =", "answer": [str(n)]},
    "null": lambda n: {"prompt": f"{n} =", "answer": None},
    "bool": lambda n: {"prompt": f"{n} =", "answer": True},
    "nested": lambda n: {"prompt": {"text": f"{n} ="}, "answer": 1},
}


READ = ("gsm8k", "math", "verl", "label", "list of answers", "bool")
"""Those that train as they are."""


def _format(draw: random.Random, folder: Path, model: Path) -> Case:
    name = draw.choice([*FORMATS])
    file = write(folder / "d.jsonl", [FORMATS[name](n) for n in range(12)])
    if name in READ:
        return check(file, model)._replace(witness=lambda said: "")
    return check(file, model, right=REFUSED, says=r"d\.jsonl, line 1\b")


def _held_out(draw: random.Random, folder: Path, model: Path) -> Case:
    """A wrong line in the file of held-out prompts, and a good one of the same prompts."""
    write(folder / "d.jsonl", good(draw, 12))
    lines = good(draw, 6)
    if draw.random() < 0.3:  # all prompts that train are held out
        held = (folder / "d.jsonl").read_bytes()
        (folder / "held.jsonl").write_bytes(held)
        more = f"task.eval_path={folder / 'held.jsonl'}"
        return check(folder / "d.jsonl", model, more, held_out=99, right=REFUSED, says="no prompt")
    at = draw.randrange(len(lines))
    lines[at] = draw.choice([b"{", b"[]", b'{"prompt": "a"}', b'{"prompt": "", "answer": 1}'])
    write(folder / "held.jsonl", lines)
    more = f"task.eval_path={folder / 'held.jsonl'}"
    says = rf"held\.jsonl{_place(at, lines[at])}"
    return check(folder / "d.jsonl", model, more, right=REFUSED, says=says)


def _supervised(draw: random.Random, folder: Path, model: Path) -> Case:
    """A wrong example among those that are learned beside."""
    write(folder / "d.jsonl", good(draw, 12))
    lines: list[Line] = [{"prompt": f"{n}", "response": f"{n}"} for n in range(8)]
    at = draw.randrange(len(lines))
    bad: Line = draw.choice(
        [
            *(b"{", b"[]", b"1", b"\xff", b"\0" * 9, b"[" * 50_000),
            *({"prompt": "a"}, {"response": "a"}, {"prompt": "a", "response": ""}),
            *({"prompt": 1, "response": "a"}, {"prompt": "a", "response": [[]]}),
            {"prompt": "a", "response": "b" * 500},
            {"prompt": "a" * 500, "response": "b"},
        ]
    )
    lines[at] = bad
    write(folder / "s.jsonl", lines)
    more = "supervised.coefficient=0.1", f"supervised.path={folder / 's.jsonl'}"
    return check(folder / "d.jsonl", model, *more, right=REFUSED, says=_place(at, bad))


def _mixed(draw: random.Random, folder: Path, model: Path) -> Case:
    """A wrong line in the file of one task of a mix."""
    write(folder / "a.jsonl", good(draw, 12))
    lines = good(draw, 12)
    at = draw.randrange(len(lines))
    lines[at] = draw.choice([b"{", b"[]", b'{"prompt": "a"}', b'{"prompt": "", "answer": 1}'])
    write(folder / "b.jsonl", lines)
    tables = "\n".join(
        f'[task.mix.{name}]\nname = "jsonl"\npath = "{folder}/{name}.jsonl"\neval_size = 2'
        for name in "ab"
    )
    (folder / "run.toml").write_text(f"{tables}\n[task.weights]\na = 0.5\nb = 0.5\n")
    argv = ("check", str(folder / "run.toml"), f"--set=model.path={model}")
    return Case(argv, REFUSED, rf"b\.jsonl{_place(at, lines[at])}")


def _place(at: int, line: Line) -> str:
    """The pattern of a wrong line's place. A file that begins with an array is one."""
    return r" goes on behind" if not at and line == b"[]" else rf", line {at + 1}\b"


def _cases(draw: random.Random, folder: Path, model: Path) -> Case:
    """A line of programs that is none."""
    fine = {"input": "1", "output": "1"}
    line = {"prompt": "a", "verifier": "run", "language": "python", "cases": [fine]}
    name, values = draw.choice(
        [
            ("language", ["cobol", 1, ["python"], "\x1b[2J", "x" * 9999]),
            ("cases", [[], {}, None, 1, [1], [{}], [{"input": 1, "output": "1"}], [[fine]]]),
            ("seconds", [0, -1, "1", None, [], 0.0]),
        ]
    )
    line[name] = draw.choice(values)
    lines = good(draw, 6)
    at = draw.randrange(len(lines))
    lines[at] = line
    file = write(folder / "d.jsonl", lines)
    says = rf"d\.jsonl, line {at + 1}\b"
    return check(file, model, "task.sandbox=process", right=REFUSED, says=says)


def _epochs(draw: random.Random, folder: Path, model: Path) -> Case:
    """Epochs of a file of so many lines: the steps that follow are those of the file."""
    count, groups = draw.randint(4, 40), draw.randint(1, 4)
    epochs = draw.randint(1, 3)
    file = write(folder / "d.jsonl", good(draw, count))
    prompts = (count - 2) * epochs
    steps = -(-prompts // groups)
    more = (f"task.epochs={epochs}", f"train.batch_groups={groups}", "train.steps=100000")
    case = check(file, model, *more)

    def look(said: Said) -> str:
        numbers = [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*", said.out)]
        return "" if steps in numbers else f"{steps} steps: {said.out[:900]}"

    return case._replace(witness=look)


def _blank_template(draw: random.Random, folder: Path, model: Path) -> Case:
    """A template of the question alone: white space is no prompt."""
    lines = good(draw)
    at = draw.randrange(len(lines))
    lines[at] = {"prompt": draw.choice(["", " ", "\n", "\u2003", "\u00a0"]), "answer": 1}
    file = write(folder / "d.jsonl", lines)
    says = rf"d\.jsonl, line {at + 1}\b"
    return check(file, model, "task.template={question}", right=REFUSED, says=says)


def _binary(draw: random.Random, folder: Path, model: Path) -> Case:
    start = draw.choice([b"PAR1", b"\x1f\x8b\x08", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"ARROW1"])
    (folder / "d.jsonl").write_bytes(start + draw.randbytes(draw.randint(0, 5000)))
    return check(folder / "d.jsonl", model, right=REFUSED, says=r"d\.jsonl")


MAKERS: dict[str, Maker] = {
    "empty prompt": among(
        lambda draw: {"prompt": draw.choice(["", " ", "\n", "\t\r\n", " ", "　"]), "answer": 1}
    ),
    "no prompt or answer": among(lambda draw: {draw.choice(["prompt", "answer", "Prompt"]): "1"}),
    "of another type": among(
        lambda draw: {
            "prompt": draw.choice([1, None, [], {}, True, ["a"], 1.5, "x"]),
            "answer": draw.choice([None, [], {}, True, ["1"]]),
        }
    ),
    "no object": among(
        lambda draw: draw.choice([b"1", b"null", b"[]", b'"x"', b"{}", b"[{}]", b"true", b"x"])
    ),
    "NUL": among(
        lambda draw: {"prompt": "a\0b", "answer": "\0"},
        lambda draw: b'{"prompt": "a\0b", "answer": 1}',
        lambda draw: b"\0" * draw.randint(1, 4096),
    ),
    "NaN": among(
        lambda draw: (
            b'{"prompt": "a", "answer": 1, "hard": %s}'
            % draw.choice(
                [b"NaN", b"Infinity", b"-Infinity", b"nan", b"1e999", b"-0", b"01", b"1."]
            )
        )
    ),
    "other encodings": among(
        lambda draw: '{"prompt": "é", "answer": 1}'.encode(draw.choice(["latin-1", "utf-16"])),
        lambda draw: b'{"prompt": "\xed\xa0\x80", "answer": 1}',
        lambda draw: b'{"prompt": "\\ud800", "answer": 1}',
        lambda draw: b'{"prompt": "a\xff", "answer": 1}',
    ),
    "BOM": whole(lambda draw, lines: b"\xef\xbb\xbf" + _plain(lines)),
    "UTF-16": whole(
        lambda draw, lines: _plain(lines).decode().encode(draw.choice(["utf-16", "utf-16-be"]))
    ),
    "CRLF": whole(lambda draw, lines: _plain(lines).replace(b"\n", b"\r\n")),
    "old Mac": whole(lambda draw, lines: _plain(lines).replace(b"\n", b"\r")),
    "array": whole(lambda draw, lines: json.dumps(lines, indent=draw.choice([None, 1])).encode()),
    "blank lines": whole(
        lambda draw, lines: _plain(lines).replace(
            b"\n", draw.choice([b"\n\n", b"\n \t\n", b"\n\r\n", b"\n\x0b\n"])
        )
    ),
    "no last newline": whole(lambda draw, lines: _plain(lines).rstrip(b"\n")),
    "cut": whole(lambda draw, lines: (t := _plain(lines))[: draw.randrange(len(t))]),
    "empty": whole(lambda draw, lines: draw.choice([b"", b"\n", b" \n\n", b"\0"])),
    "deep": among(
        lambda draw: (
            b'{"prompt": "a", "answer": 1, "x": '
            + (b"[" * (n := draw.choice([10, 500, 50_000])))
            + b"]" * n
            + b"}"
        )
    ),
    "numbers too long": among(
        lambda draw: b'{"prompt": "a", "answer": %s}' % (b"9" * draw.choice([19, 20, 400, 5000]))
    ),
    "many keys": among(
        lambda draw: {"prompt": "a", "answer": 1, **{str(n): n for n in range(5000)}}
    ),
    "a key twice": among(lambda draw: b'{"prompt": "a", "prompt": "", "answer": 1}'),
    "a line too long": among(
        lambda draw: {"prompt": "z" * draw.choice([10**5, 10**6, 17 * 2**20]), "answer": "1"}
    ),
    "a verifier of data": among(
        lambda draw: {
            "prompt": "a",
            "answer": "1",
            "verifier": draw.choice(["os:system", "exakt", ":", "a:", ":b", "number", "", 1, "\0"]),
        }
    ),
    "special tokens": among(lambda draw: {"prompt": "<|end|>" * draw.randint(1, 30), "answer": 1}),
    "duplicates": _duplicates,
    "longer than the context": _long,
    "numbers as answers": _numbers,
    "other formats": _format,
    "binary formats": _binary,
    "a token without a row": _beyond,
    "held-out lines": _held_out,
    "examples": _supervised,
    "a mix": _mixed,
    "programs": _cases,
    "epochs": _epochs,
    "nothing but the question": _blank_template,
}


# -------------------------------------------------------------------------------------------- fuzz

_PIECES = (
    *(
        b"\0",
        b"\xff",
        b"\n",
        b"\r\n",
        b"{",
        b"}",
        b'"',
        b"\\",
        b"\\u0000",
        b"NaN",
        b"null",
        b"1e999",
    ),
    *(b'"prompt"', b'"answer"', b'"verifier": "number",', b"[[[[", b"\xef\xbb\xbf", b": ", b", "),
)


def fuzzed(draw: random.Random, folder: Path, model: Path) -> Case:
    """A good file with a few bytes changed."""
    lines = good(draw, draw.randint(1, 8))
    data = bytearray(_plain(lines))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[at : at + 1] = draw.randbytes(1)
            case 1:
                del data[at : at + draw.randint(1, 30)]
            case 2:
                data[at:at] = draw.choice(_PIECES)
            case 3:
                data[at:at] = data[max(0, at - draw.randint(1, 60)) : at]
            case _:
                data[at:at] = draw.randbytes(draw.randint(1, 9))
    (folder / "d.jsonl").write_bytes(data)
    return judged(folder / "d.jsonl", model, held_out=draw.choice([0, 0, 1, 3]))
