"""Settings that name code of a user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import ConfigError, load, read, write
from asyncrl.config.engines import capabilities
from asyncrl.config.plugins import Named, load_named

ENGINE = """
from asyncrl.config.engines import Capabilities
from asyncrl.engines.spec import EngineKind

class Mine(EngineKind):
    capabilities = Capabilities(keeps_versions=False)

    @classmethod
    def open(cls, context):
        raise NotImplementedError

class Half(EngineKind):
    pass

class Other:
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("their_engine", "their_broken"):
        sys.modules.pop(name, None)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, [f"engine.kind={text}"], {})
    said = str(caught.value)
    assert said.isprintable() and said.endswith(".")
    return said


def test_an_engine_of_a_user_is_named_by_module_and_class(module: Path) -> None:
    (module / "their_engine.py").write_text(ENGINE)
    config = load(None, ["engine.kind=their_engine:Mine"], {})
    write(config, module / "run.toml")
    assert read(module / "run.toml").engine.kind == "their_engine:Mine"
    assert not capabilities(config.engine.kind).keeps_versions
    with pytest.raises(ConfigError, match="one version"):
        load(None, ["engine.kind=their_engine:Mine", "staleness.finish_on=own"], {})


def test_what_cannot_be_had_is_named(module: Path) -> None:
    (module / "their_engine.py").write_text(ENGINE)
    (module / "their_broken.py").write_text("1 / 0")
    assert "has no Nothing" in refusal("their_engine:Nothing")
    assert "is no engine" in refusal("their_engine:Other")
    assert "must define open" in refusal("their_engine:Half")
    assert "PYTHONPATH" in refusal("not_there:Mine")
    assert "ZeroDivisionError" in refusal("their_broken:Mine")
    assert "nearest is sglang" in refusal("sglagn")


def test_each_engine_declares_itself_without_torch() -> None:
    """In another process: this one has torch already."""
    import subprocess

    script = (
        "import sys; from asyncrl.config.engines import ENGINES; "
        "print([kind for kind in ENGINES if ENGINES.find(kind) and 'torch' in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr


@given(st.text())
def test_any_name_is_had_or_refused_in_a_sentence(text: str) -> None:
    if Named("engine", ()).allows(text):
        module, _, name = text.partition(":")
        assert all(part.isidentifier() for part in (*module.split("."), name))
    else:
        with pytest.raises(ConfigError):
            load_named(text, "engine")
