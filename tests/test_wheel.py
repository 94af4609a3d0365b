"""The wheel of asyncrl: it installs one name, and every file of the product."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("actors", "staleness", "weightsync")
CACHES = ignore_patterns("__pycache__", "*.egg-info")

PRODUCT = sorted(
    file.relative_to(ROOT)
    for name in ("asyncrl", *LINKED)
    for file in (ROOT / name).rglob("*")
    if file.is_file() and "__pycache__" not in file.parts
)
"""The files of the product, as they lie in a checkout."""

EXTRAS = ("reasoning_gym", "openai", "peft", "cryptography", "ray", "pyarrow", "wandb", "obstore")
ABSENT = "raise ModuleNotFoundError(f'No module named {__name__}', name=__name__)\n"
COMMANDS = (["init"], ["check", "run.toml"], ["tasks"], ["simulate", "--seed", "0"])
CALLED = f"""
from asyncrl.cli import main
for words in {COMMANDS!r}:
    assert not main(words), words
"""
README = (ROOT / "README.md").read_text()
SHORT = {
    '"steps": 60': '"steps": 2, "batch_groups": 2',
    "rl.Config(": "rl.Config(model={'warmup_steps': 0}, engine={'compile': False}, "
    "rollout={'filter': 'none'}, ",
}
"""Changes of its lines of Python, for a shorter run."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy of it, where nothing was built before."""
    copied = tmp_path_factory.mktemp("source") / "asyncrl"
    for name in ("asyncrl", *LINKED):
        copytree(ROOT / name, copied / name, symlinks=True, ignore=CACHES)
    for name in ("pyproject.toml", "README.md", "LICENSE", "run.toml"):
        copy(ROOT / name, copied / name)
    to = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools.build_meta import build_wheel as build; build({str(to)!r})"  # as pip
    subprocess.run([sys.executable, "-c", code], cwd=copied, stdout=subprocess.DEVNULL, check=True)
    (built,) = to.glob("*.whl")
    return built


def test_a_wheel_has_each_file_of_the_product_once_and_one_name(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"asyncrl"}
    inside = [
        str(path if path.parts[0] == "asyncrl" else "asyncrl" / path)
        for path in PRODUCT
        if not (ROOT / path).is_dir()
    ]
    assert sorted(names) == sorted(inside)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel. The dependencies are this environment's, whose
    own asyncrl is not found."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    argv = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *argv], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    assert {found.name.partition("-")[0] for found in site.iterdir()} == {"asyncrl"}
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def told(python: Path, here: Path, *words: str) -> str:
    """The output of Python, which imports nothing of the checkout, in a folder."""
    argv = [str(python), "-I", *words]
    done = subprocess.run(argv, cwd=here, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.explore
def test_an_installed_wheel_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = "import asyncrl.actors, asyncrl.staleness; print(asyncrl.actors.__file__)"
    assert told(installed, tmp_path, "-c", where).startswith(str(installed.parents[1]))
    for words in (["--help"], ["--version"]):
        assert told(installed, tmp_path, "-m", "asyncrl.cli", *words), words
    assert told(installed, tmp_path, "-c", CALLED)
    assert (tmp_path / "run.toml").read_text() == (ROOT / "run.toml").read_text()


@pytest.mark.explore
def test_what_is_installed_has_the_extras_that_messages_name(installed: Path) -> None:
    """`pip install 'asyncrl[lora]'` asks no index for asyncrl."""
    argv = ["--python", str(installed), "install", "--no-index", "asyncrl[lora,agents]"]
    done = subprocess.run([sys.executable, "-m", "pip", *argv], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.explore
def test_the_lines_of_python_in_the_readme_run(installed: Path, tmp_path: Path) -> None:
    """Ten of them, in an empty folder; a shorter run of a model that is not warmed up."""
    (lines,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) <= 10
    assert len(README.splitlines()) <= 150
    for said, brief in SHORT.items():
        assert lines.count(said) == 1
        lines = lines.replace(said, brief)
    (tmp_path / "first.py").write_text(lines)
    said = told(installed, tmp_path, "first.py")
    assert "all 2 steps are done" in said and re.search(r"^True [0-9.]+ /", said, re.MULTILINE)


@pytest.mark.explore
def test_a_file_of_prompts_needs_no_extra(wheel: Path, tmp_path: Path) -> None:
    """`pip install asyncrl` alone is enough for prompts of one's own, and `import asyncrl` too."""
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path)
    for name in EXTRAS:
        (tmp_path / f"{name}.py").write_text(ABSENT)
    lines = [f'{{"prompt": "{number} + 1 = ", "answer": "{number + 1}"}}' for number in range(400)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    script = """
import asyncrl
from asyncrl.cli import main
for name in asyncrl.__all__:
    getattr(asyncrl, name)
for words in (["init", "p.jsonl"], ["check", "run.toml"]):
    assert not main(words), words
assert main(["init", "chain_sum"]) == 2
"""
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "pip install 'asyncrl[gym]'" in done.stderr


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_folder_is_no_package_of_its_own(name: str) -> None:
    """A run or a test that imported it by its short name would have two copies of its modules."""
    argv = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert "import it by that name" in done.stderr and done.returncode == 1
