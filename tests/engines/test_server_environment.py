"""The environment of a server is looked into by its own Python, before the server is started."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from asyncrl.engines.servers.server_environment import (
    ServerEnvironment,
    ServerPackage,
    doubt,
    look,
    misfit,
)
from asyncrl.engines.sglang.sglang_launch import PACKAGE as SGLANG
from asyncrl.engines.vllm.vllm_launch import PACKAGE as VLLM

SGLANG_MODELS = {
    "one.py": "EntryClass = OneForCausalLM\n",
    "two.py": "x = 1\nEntryClass = [TwoForCausalLM, TwoAForCausalLM]\n\ndef EntryClassOf(): ...\n",
    "three.py": "EntryClass = [\n    ThreeForCausalLM,\n    ThreeMoe,  # Four\n]\nclass Not: ...\n",
    "helper.py": "class HelperForCausalLM: ...\n",
}
VLLM_REGISTRY = """
_TEXT_GENERATION_MODELS = {
    # [Decoder-only]
    "OneForCausalLM": ("one", "OneForCausalLM"),
    "TwoForCausalLM": (
        "two",
        "Inner",
    ),
}
_EMBEDDING_MODELS = {
    "EmbeddingModel": ("one", "OneForCausalLM"),
}
_MULTIMODAL_MODELS = {
    "SeeingModel": ("three", "Seeing"),
}
"""


def packaged(root: Path, package: ServerPackage, files: dict[str, str]) -> list[str]:
    """A command whose Python has the package in `root`, with these sources."""
    folder = (root / package.module / package.files).parent
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (root / package.module / "__init__.py").write_text("raise SystemExit('it was imported')")
    command = root / "python"
    start = f"import sys; sys.path.insert(0, {str(root)!r}); exec(sys.argv.pop(1))"
    command.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o700)
    return [str(command)]


@pytest.mark.parametrize(
    ("package", "files", "models"),
    [
        (
            SGLANG,
            SGLANG_MODELS,
            {"OneForCausalLM", "TwoForCausalLM", "TwoAForCausalLM", "ThreeForCausalLM", "ThreeMoe"},
        ),
        (
            VLLM,
            {"registry.py": VLLM_REGISTRY},
            {"OneForCausalLM", "TwoForCausalLM", "SeeingModel"},
        ),
    ],
)
def test_models_are_read_from_the_sources_and_nothing_is_imported(
    package: ServerPackage, files: dict[str, str], models: set[str], tmp_path: Path
) -> None:
    seen = look(packaged(tmp_path, package, files), package, "OneForCausalLM")
    assert seen is not None
    assert seen.models == models
    assert seen.version("torch") == metadata.version("torch")
    assert seen.version(*package.names) == ""


def test_what_is_no_python_tells_nothing(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho '{\"versions\": 3}'\n")
    silent.chmod(0o700)
    for command in (["/nowhere/python"], ["false"], ["echo"], [str(silent)]):
        assert look(command, SGLANG, "OneForCausalLM") is None


def test_what_a_plug_in_or_the_fallback_may_serve_is_doubtful_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the server can know. Its transformers has a Nine, and nothing a Ten."""
    python = packaged(tmp_path, SGLANG, SGLANG_MODELS)
    (of_nine := tmp_path / "transformers" / "models" / "nine").mkdir(parents=True)
    (tmp_path / "transformers" / "__init__.py").write_text("raise SystemExit('it was imported')")
    (of_nine / "modeling_nine.py").write_text("class NineForCausalLM(Base): ...\n")

    def words(architecture: str) -> tuple[str | None, str]:
        seen = look(python, SGLANG, architecture)
        assert seen is not None
        seen.versions["sglang"] = "0.5.23"
        fault = misfit(seen, SGLANG, architecture, nccl=None)
        return fault, doubt(seen, SGLANG, architecture)

    assert words("OneForCausalLM") == (None, "")
    said = "SGLang 0.5.23 has no {} of its own: {} may serve it, which the server's start and "
    said += "the first publication tell"
    assert words("NineForCausalLM") == (
        None,
        said.format("NineForCausalLM", "its transformers backend"),
    )
    for other in ("TenForCausalLM", "NineForCausal", "Nine.*"):
        fault, doubtful = words(other)
        assert fault is not None and f"serves no {other}, nor has its transformers" in fault
        assert doubtful == ""
    (info := tmp_path / "mine-1.dist-info").mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nmine = mine:register\nits = sglang.x:y\n"
    )
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "mine.models")
    assert words("TenForCausalLM") == (
        None,
        said.format(
            "TenForCausalLM", "the plug-in mine or SGLANG_EXTERNAL_MODEL_PACKAGE=mine.models"
        ),
    )


VERSIONS = {"sglang": "0.5.23", "torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7"}
SEEN = ServerEnvironment(VERSIONS, frozenset({"OneForCausalLM"}))


@pytest.mark.parametrize(
    ("seen", "architecture", "nccl", "fault"),
    [
        (SEEN, "OneForCausalLM", None, None),
        (SEEN, "OneForCausalLM", "2.30.7", None),
        (SEEN, "OneForCausalLM", "2.29.7", "has NCCL 2.30.7 (torch 2.14.1), and this one 2.29.7:"),
        (SEEN, "OneForCausalLM", "", "has NCCL 2.30.7 (torch 2.14.1), and this one of no package:"),
        (SEEN, "TwoForCausalLM", None, "has SGLang 0.5.23, which serves no TwoForCausalLM, nor"),
        (ServerEnvironment({}, frozenset()), "OneForCausalLM", None, "has no SGLang"),
        (
            ServerEnvironment({"sglang": "0.6.1"}, SEEN.models),
            "OneForCausalLM",
            None,
            "has SGLang 0.6.1; it was tried with 0.5.23, and 0.6 and later are not supported",
        ),
        (
            ServerEnvironment(VERSIONS, frozenset()),
            "TwoForCausalLM",
            None,
            None,
        ),  # none was found listed
    ],
)
def test_what_does_not_fit_is_named(
    seen: ServerEnvironment, architecture: str, nccl: str | None, fault: str | None
) -> None:
    found = misfit(seen, SGLANG, architecture, nccl=nccl)
    if fault is None:
        assert found is None
    else:
        assert found is not None and re.match(re.escape(fault), found)
