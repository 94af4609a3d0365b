"""The tables of fused modules are what the installed SGLang's own models say. Its sources are read,
and nothing of it is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from real_sglang import PYTHON

from asyncrl.weightsync.servers.server_names import EXPERTS, FUSED

Row = tuple[str, str, object]
TABLES = "stacked_params_mapping", "make_expert_params_mapping"


@pytest.fixture(scope="module")
def models() -> dict[str, ast.Module]:
    """The model files of the installed wheel that have a table."""
    folders = list((PYTHON.parents[1] / "lib").glob("python*/site-packages/sglang/srt/models"))
    if not folders:
        pytest.skip("there is no environment for SGLang here; `make sglang-cpu` builds it")
    sources = {file: file.read_text() for file in sorted(folders[0].rglob("*.py"))}
    return {
        str(file.relative_to(folders[0])): ast.parse(source)
        for file, source in sources.items()
        if any(table in source for table in TABLES)
    }


def constant(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def rows(tree: ast.Module) -> Iterator[list[Row]]:
    """The rows of each `stacked_params_mapping` of a file: the server's module, the checkpoint's,
    and the place of the second in the first."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)):
            continue
        if not isinstance(node.value, (ast.List, ast.Tuple)):
            continue
        if "stacked_params_mapping" in ast.unparse(node).partition("=")[0]:
            found = [constant(each) for each in node.value.elts]
            yield [row for row in found if isinstance(row, tuple) and len(row) == 3]


def last(name: str) -> str:
    """The module that a part of a name ends in."""
    return name.strip(".").rpartition(".")[2]


def place(row: Row) -> int:
    at = row[2][0] if isinstance(row[2], tuple) else row[2]
    return {"q": 0, "k": 1, "v": 2}[at] if isinstance(at, str) else int(str(at))


def test_modules_that_sglang_fuses_are_fused_alike_here(models: dict[str, ast.Module]) -> None:
    seen = set[tuple[str, tuple[str, ...]]]()
    for file, tree in models.items():
        for mapping in rows(tree):
            fused: dict[str, list[str]] = {}
            for server, checkpoint, _ in sorted(mapping, key=place):
                parts = fused.setdefault(last(server), [])
                parts.extend([last(checkpoint)] * (last(checkpoint) not in parts))
            for module, parts in fused.items():
                assert tuple(parts) in FUSED.get(module, ()), f"{file} makes {module} of {parts}"
                seen.add((module, tuple(parts)))
    assert ("qkv_proj", ("q_proj", "k_proj", "v_proj")) in seen, "no mapping was found"
    assert ("in_proj_ba", ("in_proj_b", "in_proj_a")) in seen and len(seen) > 12


def test_experts_that_sglang_stacks_are_stacked_alike_here(models: dict[str, ast.Module]) -> None:
    seen = set[tuple[str, ...]]()
    for file, tree in models.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func).rpartition(".")[2] != "make_expert_params_mapping":
                continue
            known = {word.arg: constant(word.value) for word in node.keywords}
            gate, up, down = (known[f"ckpt_{each}_proj_name"] for each in ("gate", "up", "down"))
            if down is None:
                continue  # a class for all models that transformers has, which reads its own tables
            halves = tuple(str(each) for each in (gate, up) if each)
            assert halves in EXPERTS["w13"], f"{file} stacks {halves}"
            assert (str(down),) in EXPERTS["w2"], f"{file} stacks {down}"
            seen.add((*halves, str(down)))
    assert seen >= {("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")}
    assert ("up_proj", "down_proj") in seen
