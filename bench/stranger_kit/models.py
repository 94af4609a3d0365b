"""Model directories as they are published and copied: files that are missing, cut, of another
encoding, in contradiction, or no files at all."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stranger_kit import data
from stranger_kit.attempt import EITHER, REFUSED, RUNS, Case, Said

Maker = Callable[[random.Random, Path, Path], Case]
Change = Callable[[random.Random, Path], None]
MAKE = (
    "import sys; from pathlib import Path; from asyncrl.bundled.bundled_model import *; "
    "new_model(0).save_pretrained(sys.argv[1]); write_tokenizer(Path(sys.argv[1]))"
)
JSON = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
HUGE = 200 * 2**30


def make_base(folder: Path) -> None:
    """A tiny model with random weights, made by a process that imports torch."""
    if not (folder / "model.safetensors").exists():
        subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True)


def checked(
    change: Change,
    *sets: str,
    right: frozenset[int] = REFUSED,
    says: str = "model",
    lines: list[data.Line] | None = None,
    witness: Callable[[Path], Callable[[Said], str]] | None = None,
) -> Maker:
    """A check of a good model after this change."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        directory = folder / "model"
        shutil.copytree(model, directory)
        change(draw, directory)
        case = data.check(
            data.write(folder / "d.jsonl", lines or data.good(draw, 12)),
            directory,
            *sets,
            right=right,
            says=says,
        )
        own = witness(directory) if witness else None
        return case._replace(architecture=True, witness=own or case.witness)

    return make


def edit(name: str, how: Callable[[random.Random, dict[str, Any]], object]) -> Change:
    """A change of a file of JSON."""

    def change(draw: random.Random, directory: Path) -> None:
        said = json.loads((directory / name).read_text())
        how(draw, said)
        (directory / name).write_text(json.dumps(said))

    return change


def put(name: str, contents: Callable[[random.Random, bytes], bytes]) -> Change:
    """Other bytes in a file."""

    def change(draw: random.Random, directory: Path) -> None:
        before = (directory / name).read_bytes() if (directory / name).exists() else b""
        (directory / name).write_bytes(contents(draw, before))

    return change


def _broken(draw: random.Random, before: bytes) -> bytes:
    return draw.choice(
        [
            b"",
            b"{",
            b"[]",
            b"1",
            b"null",
            b"\0" * 100,
            before[: draw.randrange(1, len(before))],
            before.decode().encode("utf-16"),
            b"\xff\xfe" + before,
            b"[" * 100_000,
        ]
    )


def _any(*names: str) -> Callable[[Callable[[str], Change]], Change]:
    """A change of one of these files."""

    def of(change: Callable[[str], Change]) -> Change:
        return lambda draw, directory: change(draw.choice(names))(draw, directory)

    return of


def remove(name: str) -> Change:
    return lambda draw, directory: (directory / name).unlink()


def no_file(path: Path, kind: str) -> None:
    """Something that is no ordinary file, at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "null":
            path.symlink_to("/dev/null")
        case "folder":
            path.mkdir()
        case "nowhere":
            path.symlink_to(path.parent / "nowhere")
        case "loop":
            path.symlink_to(path)
        case "sparse":
            with path.open("wb") as file:  # weights are mapped, within the memory of an attempt
                file.truncate(2**32 if path.suffix == ".safetensors" else HUGE)
        case "socket":
            here = Path.cwd()
            os.chdir(path.parent)  # its name may have 107 bytes
            try:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(path.name)
            finally:
                os.chdir(here)


STRANGE = ("pipe", "zero", "null", "folder", "nowhere", "loop", "sparse", "socket")


def _strange(draw: random.Random, directory: Path) -> None:
    name = draw.choice(["config.json", "tokenizer.json", "model.safetensors"])
    no_file(directory / name, draw.choice(STRANGE))


def _strange_beside(draw: random.Random, directory: Path) -> None:
    """A file that a good model need not have."""
    name = draw.choice(["tokenizer_config.json", "generation_config.json"])
    no_file(directory / name, draw.choice([kind for kind in STRANGE if kind != "nowhere"]))


def _strange_template(draw: random.Random, directory: Path) -> None:
    no_file(directory / "chat_template.jinja", draw.choice(STRANGE))


def same_ids(directory: Path) -> Callable[[Said], str]:
    """A witness: transformers gives a prompt the same ids."""

    def look(said: Said) -> str:
        from transformers import AutoTokenizer

        from asyncrl.tasks.text import Tokenizer

        text = "12 + 30 = what, in words, and why? <think>é\n"
        theirs = AutoTokenizer.from_pretrained(str(directory))(text)["input_ids"]
        ours = Tokenizer(directory).encode(text)
        return "" if ours == theirs else f"ids {ours[:40]}, transformers' are {theirs[:40]}"

    return look


def _truncation(draw: random.Random, said: dict[str, Any]) -> None:
    most = draw.choice([1, 8, 512])
    said["truncation"] = {
        "direction": draw.choice(["Right", "Left"]),
        "max_length": most,
        "strategy": "LongestFirst",
        "stride": 0,
    }


def _padding(draw: random.Random, said: dict[str, Any]) -> None:
    said["padding"] = {
        "strategy": draw.choice([{"Fixed": 32}, "BatchLongest", {"Fixed": 300}]),
        "direction": draw.choice(["Left", "Right"]),
        "pad_to_multiple_of": draw.choice([None, 8]),
        "pad_id": 257,
        "pad_type_id": 0,
        "pad_token": "<|padding|>",
    }


def _think(draw: random.Random, said: dict[str, Any]) -> None:
    for id_, name in ((258, "<think>"), (259, "</think>")):
        said["added_tokens"].append(
            {"id": id_, "content": name, "special": draw.random() < 0.5}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        )


def _expensive(draw: random.Random, said: dict[str, Any]) -> None:
    """An expression that needs more steps for a prompt than the library makes."""
    expression = draw.choice(["(\\d+\\s*)+$", "((\\d|\\s)+)+x", "([0-9 ]+)*z"])
    said["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": expression}} | {
        "behavior": draw.choice(["Isolated", "Removed"]),
        "invert": draw.random() < 0.5,
    }


def _contradicts(draw: random.Random, said: dict[str, Any]) -> None:
    """A template of ids with a token that is none; a normalizer that never ends, or one that makes
    a text a million times as long."""
    more = {"type": "Replace", "pattern": {"String": " "}, "content": " " * draw.randint(3, 9)}
    parts = [
        {"SpecialToken": {"id": "none", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    template = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
        "special_tokens": {},
    }
    key, value = draw.choice(
        [
            ("post_processor", template),
            ("normalizer", {"type": "Sequence", "normalizers": [more] * 20}),
            ("normalizer", {"type": "Prepend", "prepend": "x" * 10**7}),
        ]
    )
    said[key] = value


def _head(draw: random.Random, directory: Path) -> None:
    """A second output layer in the file of a tied model."""
    header, weights = _stored(directory)
    rows = header["model.embed_tokens.weight"]
    size = rows["data_offsets"][1] - rows["data_offsets"][0]
    header["lm_head.weight"] = rows | {"data_offsets": [len(weights), len(weights) + size]}
    _store(directory / "model.safetensors", header, weights + draw.randbytes(size))


def _stored(directory: Path) -> tuple[dict[str, Any], bytes]:
    whole = (directory / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def _store(path: Path, header: dict[str, Any], weights: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + weights)


def write_weights(path: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """Write a file of weights that are 0."""
    header, end = dict[str, Any](), 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    _store(path, header, bytes(end))


def _shard(draw: random.Random, directory: Path) -> None:
    """One file of two is missing."""
    header = _stored(directory)[0]
    header.pop("__metadata__", None)
    names = [*header]
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    half = draw.randrange(1, len(names))
    kept = {name: header[name] for name in sorted(names, key=lambda n: header[n]["data_offsets"])}
    (directory / "model.safetensors").rename(directory / parts[0])
    index = {name: parts[at >= half] for at, name in enumerate(kept)}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )


def _index(draw: random.Random, directory: Path) -> None:
    """An index that is none, or leads out of the directory."""
    text: bytes = draw.choice(
        [
            b"",
            b"{}",
            b"[]",
            b'{"weight_map": 1}',
            b'{"weight_map": {"a": 1}}',
            b'{"weight_map": {"a": "no such file"}}',
            b'{"weight_map": {"a": "../../../etc/passwd"}}',
            b'{"weight_map": {"a": "\\u0000"}}',
            b'{"weight_map": {"a": "%s"}}' % (b"x" * 300),
            b"\xff\xfe{}",
        ]
    )
    (directory / "model.safetensors.index.json").write_bytes(text)


def _weights(draw: random.Random, before: bytes) -> bytes:
    return draw.choice(
        [
            b"",
            b"\0" * 7,
            before[: draw.randrange(8, 500)],
            before[: len(before) - draw.randint(1, 5000)],
            struct.pack("<Q", 2**62) + before[8:],
            struct.pack("<Q", 10) + before[8:],
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 2004\n",
            draw.randbytes(5000),
        ]
    )


def _header(draw: random.Random, directory: Path) -> None:
    """Weights whose header tells lies."""
    header, weights = _stored(directory)
    entry = header["model.norm.weight"]
    match draw.randrange(6):
        case 0:
            entry["data_offsets"] = [2**40, 2**40 + 512]
        case 1:
            entry["shape"] = [10**9]
        case 2:
            entry["dtype"] = "F99"
        case 3:
            entry["data_offsets"] = [-8, 504]
        case 4:
            entry.pop("shape")
        case _:
            header["model.norm.weight"] = 7
    _store(directory / "model.safetensors", header, weights)


def _other_shape(draw: random.Random, said: dict[str, Any]) -> None:
    """A model that the weights do not fit."""
    name, values = draw.choice(
        [
            ("hidden_size", [64, 256]),
            ("intermediate_size", [64, 400]),
            ("num_hidden_layers", [3]),
            ("vocab_size", [200, 300]),
            ("num_key_value_heads", [2]),
        ]
    )
    said[name] = draw.choice(values)
    if name == "num_hidden_layers":
        said["layer_types"] = ["full_attention"] * said[name]


def _impossible(draw: random.Random, said: dict[str, Any]) -> None:
    """A model that cannot be made."""
    name, value = draw.choice(
        [
            ("num_hidden_layers", 5),
            ("hidden_size", "wide"),
            ("hidden_size", -128),
            ("hidden_size", 0),
            ("num_attention_heads", 0),
            ("num_attention_heads", 3.5),
            ("num_key_value_heads", 3),
            ("vocab_size", "many"),
            ("vocab_size", -1),
            ("vocab_size", None),
            ("model_type", "nonesuch"),
            ("model_type", 3),
            ("model_type", "\x1b[2J"),
            ("rope_parameters", []),
            ("rope_parameters", {"rope_type": "nonesuch"}),
            ("layer_types", ["nonesuch"] * 2),
            ("hidden_act", "nonesuch"),
            ("dtype", "float99"),
            ("text_config", 5),
            ("eos_token_id", "stop"),
        ]
    )
    said[name] = value


def _template(draw: random.Random, directory: Path) -> None:
    """A chat template that drops the question, or is none."""
    text = draw.choice(
        [
            "{{",
            "{% for m in messages %}",
            "{{ raise_exception('no') }}",
            "{{ messages[9].content }}",
            "{{ 1 / 0 }}",
            "nothing",
            "",
            "{%- for m in messages %}{%- for part in m['content'] %}{{ part['text'] }}"
            "{%- endfor %}{%- endfor %}",
            "{{ messages[0].content[:5] }}",
            "{{ '\\ud800' }}{{ messages[0].content }}",
            "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}",
            "{{ messages.__class__.__mro__ }}",
            "{% include '/etc/passwd' %}",
            "{{ messages[0].content | nonesuch }}",
            "{{ messages[0].content | upper }}",
            "{{ 'x' * (10**12) }}",
            "{{ 10 ** (10 ** 9) }}",
            "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
            "{{ messages[0].content }}",
            "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}{{ messages[0].content }}",
            "{{ messages[0].content * 10 ** 7 }}",
            "{{ messages[0].content | center(10 ** 10) }}",
            "{{ messages[0].content }}{{ ((['x' * 10 ** 6] * 10 ** 6) | join) | length }}",
            "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        ]
    )
    (directory / "chat_template.jinja").write_text(text)


def _end(draw: random.Random, directory: Path) -> None:
    """No end of sequence in any file."""
    for name, key in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        edit(name, lambda _, said, key=key: said.pop(key, None))(draw, directory)  # type: ignore[misc]


def _no_directory(draw: random.Random, folder: Path, model: Path) -> Case:
    """No directory at the path of the model."""
    path = folder / "model"
    no_file(path, draw.choice(STRANGE))
    return data.check(
        data.write(folder / "d.jsonl", data.good(draw)), path, right=REFUSED, says="model"
    )


def _linked(draw: random.Random, directory: Path) -> None:
    """Files as links, as a hub's cache has them."""
    blobs = directory.with_name("blobs")
    blobs.mkdir()
    for number, path in enumerate([*directory.iterdir()]):
        path.rename(blobs / str(number))
        path.symlink_to(f"../blobs/{number}")


def _stops(draw: random.Random, said: dict[str, Any]) -> None:
    said["eos_token_id"] = draw.choice([[256], [256, 5], [256] * 3, 256, [256, 999_999], 10**12])


MAKERS: dict[str, Maker] = {
    "truncation saved": checked(
        edit("tokenizer.json", _truncation), right=RUNS, says="", witness=same_ids
    ),
    "padding saved": checked(
        edit("tokenizer.json", _padding), right=RUNS, says="", witness=same_ids
    ),
    "words for thinking": checked(
        edit("tokenizer.json", _think), right=RUNS, says="", witness=same_ids
    ),
    "an expensive expression": checked(
        edit("tokenizer.json", _expensive),
        right=EITHER,
        says="tokenizer",
        lines=[{"prompt": "1 " * (24 - n) + "=", "answer": "1"} for n in range(6)],
    ),
    "a tokenizer without sense": checked(
        edit("tokenizer.json", _contradicts), says=r"tokenizer|prompt"
    ),
    "links": checked(_linked, right=RUNS, says="", witness=same_ids),
    "several ends": checked(edit("generation_config.json", _stops), right=EITHER),
    "another output layer": checked(_head, says="lm_head"),
    "a missing shard": checked(_shard, says="model-00002-of-00002"),
    "an index that is none": checked(_index, right=EITHER, says=r"index|weights|model"),
    "a missing file": checked(
        lambda draw, directory: remove(
            draw.choice(["config.json", "tokenizer.json", "model.safetensors"])
        )(draw, directory)
    ),
    "broken JSON": checked(
        _any("config.json", "tokenizer.json")(lambda name: put(name, _broken)), says=r"json"
    ),
    "broken JSON beside": checked(
        _any("tokenizer_config.json", "generation_config.json")(lambda name: put(name, _broken)),
        right=REFUSED,
        says=r"json",
    ),
    "broken weights": checked(put("model.safetensors", _weights), says="safetensors"),
    "a header that lies": checked(_header, says="safetensors"),
    "no model of that shape": checked(edit("config.json", _impossible), says=r"model|config"),
    "weights of another shape": checked(edit("config.json", _other_shape), says=r"model|weights"),
    "no end of sequence": checked(_end, says="end of sequence"),
    "no files": checked(_strange),
    "no files beside": checked(_strange_beside, right=EITHER),
    "no directory": _no_directory,
    "a template that fails": checked(_template, "task.chat=true", says="template"),
    "no template": checked(remove("chat_template.jinja"), "task.chat=true", says="template"),
    "a template that is no file": checked(
        _strange_template, "task.chat=true", right=REFUSED, says=r"template|chat"
    ),
}
