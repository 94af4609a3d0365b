"""Each section of docs/extending.md runs as it is written: its module, on the page or in
docs/examples/extending, is written to a folder, its settings are loaded, and its tests run."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio

from asyncrl.bundled import bundled_model
from asyncrl.cli import main
from asyncrl.config import Config, ConfigError, load, read, write
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.training.learner import Learner

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs/examples/extending"
LINK = re.compile(r"\]\(examples/extending/(\w+)\.py\)")


class Section(NamedTuple):
    """A section of the page: its settings, its module and its tests."""

    title: str
    toml: str
    module: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The module's name, as its first line says it."""
        match = re.match(r'"""(\w+)\.py: ', self.module)
        return match[1] if match else "one_product_file"


def sections() -> Iterator[Section]:
    page = (ROOT / "docs/extending.md").read_text()
    for text in page.split("\n## ")[1:]:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        tomls = [code for kind, code in blocks if kind == "toml"]
        linked = LINK.findall(text)
        codes = [code for kind, code in blocks if kind == "python"] or [
            (EXAMPLES / f"{name}.py").read_text()
            for name in (linked[0], *(f"test_{name}" for name in linked))
        ]
        module, *tests = codes
        yield Section(text.partition("\n")[0], "".join(tomls), module, tuple(tests))


SECTIONS = list(sections())
every = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
named = pytest.mark.parametrize(
    "section", [s for s in SECTIONS if s.toml], ids=lambda section: section.title
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the Python path, with a file of prompts; what is imported from it goes again."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"prompt": "{n} + {n} =", "answer": {2 * n}}}\n' for n in range(300)]
    (tmp_path / "sums.jsonl").write_text("".join(lines))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = str(getattr(sys.modules[name], "__file__", None))
        if file.startswith((str(tmp_path), str(EXAMPLES))):
            del sys.modules[name]


def imported(section: Section, folder: Path) -> ModuleType:
    (folder / f"{section.name}.py").write_text(section.module)
    importlib.invalidate_caches()
    return importlib.import_module(section.name)


def loaded(section: Section, folder: Path) -> Config:
    """The configuration with the section's own settings and module."""
    imported(section, folder)
    (folder / "mine.toml").write_text(section.toml)
    return load(folder / "mine.toml", (), {})


def test_the_page_has_a_section_for_each_thing() -> None:
    things = (
        *("correction", "objective", "advantage", "credit", "group weight"),
        *("minibatch rule", "optimizer", "curriculum"),
        *(
            "sizing",
            "filter",
            "league rule",
            "keep rule",
            "prune rule",
            "fork rule",
            "replay rule",
            "kind of task",
            "verifier",
            "admission rule",
        ),
    )
    assert [section.title for section in SECTIONS] == [
        *(f"Add a{'n' * (thing[0] in 'aeiou')} {thing}" for thing in things),
        "Add an engine",
    ]
    assert all(section.tests for section in SECTIONS)
    linked = LINK.findall((ROOT / "docs/extending.md").read_text())
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    assert files == {*linked, *(f"test_{name}" for name in linked)}


@every
def test_its_tests_pass(section: Section, folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests/staleness"))
    from test_admission import Work

    names: dict[str, Any] = {**vars(imported(section, folder)), "Work": Work}
    tests = []
    for code in section.tests:
        exec(compile(code, f"docs/extending.md: {section.title}", "exec"), names)
    for name, test in names.items():
        if name.startswith("test_"):
            tests.append(name)
            given = {"tmp_path": folder} if inspect.signature(test).parameters else {}
            if inspect.iscoroutinefunction(test):
                trio.run(test)
            else:
                test(**given)
    assert tests


@named
def test_its_settings_are_loaded_and_written(section: Section, folder: Path) -> None:
    config = loaded(section, folder)
    assert f"{section.name}:" in section.toml and tomllib.loads(section.toml)
    write(config, folder / "run.toml")
    assert read(folder / "run.toml") == config
    assert f'"{section.name}:' in (folder / "run.toml").read_text()


@pytest.mark.parametrize("section", SECTIONS[:6], ids=lambda section: section.title)
def test_a_learner_trains_with_it(section: Section, folder: Path) -> None:
    config = loaded(section, folder)
    learner = Learner(bundled_model.new_model(0), config.train, config.staleness, 1.0)
    samples = [Sample(n, 0, 2, 3, float(n % 2), [Span(0, 2, 5)]) for n in range(4)]
    ids = np.tile(np.array([3, 4, 65, 66, 67], np.int32), len(samples))
    behaviour, mask = np.full(12, -5.0, np.float32), np.ones(12, np.uint8)
    batch = MicroBatch(0, 0, samples, {0: [s.reward for s in samples]})
    counts = learner.accumulate(batch, [ids.tobytes(), behaviour.tobytes(), mask.tobytes()])
    metrics = learner.step()
    assert sum(count.trained for count in counts + learner.counts) > 0
    assert metrics["skipped"] == 0 and metrics["grad_norm"] > 0


@pytest.mark.explore
def test_a_check_passes_and_imports_no_torch(folder: Path) -> None:
    """All of them in one process, as users run the command."""
    own = [section for section in SECTIONS if section.toml]
    for section in own:
        (folder / f"{section.name}.py").write_text(section.module)
        (folder / f"{section.name}.toml").write_text(section.toml)
    files = [f"{section.name}.toml" for section in own]
    code = (
        "import sys; from asyncrl.cli import main; "
        f"print([main(['check', file]) for file in {files}], 'torch' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{[0] * len(files)} False", done.stdout + done.stderr


BAD = {
    "not_there:Mine": "PYTHONPATH",
    "broken:Mine": "ZeroDivisionError",
    "empty:Mine": "has no Mine",
    "other:Mine": "is no",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    "setting",
    [
        *("staleness.correction", "train.objective", "train.advantage", "train.credit"),
        *(
            "train.group_weight",
            "train.minibatch_by",
            "train.optimizer",
            "train.keep",
            "train.replay",
            "task.curriculum",
            "rollout.sizing",
            "rollout.filter",
        ),
    ],
)
def test_a_bad_module_is_a_sentence_and_status_2(
    setting: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("1 / 0")
    (folder / "empty.py").write_text("")
    (folder / "other.py").write_text("class Mine: pass")
    importlib.invalidate_caches()
    value = f"[{{kind = '{name}'}}]" if setting == "staleness.correction" else name
    assert main(["check", "--set", f"{setting}={value}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("asyncrl: ") and sentence.endswith(".") and BAD[name] in sentence


OTHERS = """
from typing import Annotated
from msgspec import Meta
from asyncrl.staleness.corrections import Corrected, Correction

class Needs(Correction, frozen=True):
    hi: Annotated[float, Meta(gt=0)]
    def apply(self, tokens, mask):
        return Corrected(mask.float(), mask, {})

class Odd(Correction, frozen=True):
    hi: complex = 0j
    def apply(self, tokens, mask):
        return Corrected(mask.float(), mask, {})

class Picky(Correction, frozen=True):
    hi: float = 1.0
    def __post_init__(self):
        if self.hi > 2:
            raise ValueError("hi must be small")
    def apply(self, tokens, mask):
        return Corrected(mask.float(), mask, {})

class Idle(Correction, frozen=True):
    pass
"""


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("{kind = 'others:Needs'}", "without 'hi', which it needs"),
        ("{kind = 'others:Needs', hi = 0}", "staleness.correction.others:Needs.hi is 0, and must"),
        ("{kind = 'others:Needs', high = 1.0}", "it takes hi, and the nearest is hi"),
        ("{kind = 'others:Odd'}", "cannot be read"),
        ("{kind = 'others:Picky', hi = 3.0}", "hi must be small"),
        ("{kind = 'others:Idle'}", "it must define apply"),
    ],
)
def test_a_table_that_does_not_fit_is_a_sentence(table: str, said: str, folder: Path) -> None:
    (folder / "others.py").write_text(OTHERS)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as caught:
        load(None, [f"staleness.correction=[{table}]"], {})
    assert said in str(caught.value) and str(caught.value).endswith(".")
    assert str(caught.value).startswith("--set staleness.correction=")
