"""`asyncrl settings`: the basic settings, or all of a section; instant, and no torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from asyncrl.cli import main
from asyncrl.config import Config, render
from asyncrl.config.fields import FIELDS, SECTIONS
from asyncrl.config.setting import Tier

BASIC = [key for key, field in FIELDS.items() if field.tier is Tier.BASIC]


def test_a_first_user_needs_few_of_them() -> None:
    assert 20 <= len(BASIC) <= 30 < len(FIELDS)
    needed = {"task.name", "model.path", "train.steps", "train.lr", "rollout.group_size"}
    assert needed | {"engine.kind", "staleness.max_lag", "run.dir"} <= set(BASIC)


def test_alone_it_lists_the_basic_ones_and_names_every_section(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["settings"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^  (\S+) = ", out, re.M) == BASIC
    sections = " ".join(out.rpartition("which is one of")[2].split())
    assert sections.split(", ") == list(SECTIONS)
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_all_of_its_settings_the_basic_ones_first(
    section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["settings", section]) == 0
    out = capsys.readouterr().out
    basic, _, advanced = out.partition("\nadvanced:\n")
    own = [field for field in FIELDS.values() if field.section == section]
    for text, tier in ((basic, Tier.BASIC), (advanced, Tier.ADVANCED)):
        listed = re.findall(r"^  (\S+) = ", text, re.M)
        assert listed == [field.name for field in own if field.tier is tier]
    flowing = " ".join(out.split())
    for field in own:
        assert f"{field.description} ({field.allowed}" in flowing


def test_another_section_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "rolout"]) == 2
    assert "there is no section 'rolout'; the nearest is rollout." in capsys.readouterr().err


def test_it_imports_no_torch() -> None:
    script = (
        "import sys; from asyncrl.cli import main; main(['settings', 'train']); "
        "sys.exit(bool(sys.modules.keys() & {'torch', 'transformers', 'reasoning_gym'}))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_in_a_run_toml_basic_settings_come_first() -> None:
    for table in render(Config()).split("\n["):
        section, _, settings = table.partition("]\n")
        basic, _, advanced = settings.partition("# Advanced:\n")
        for key, field in FIELDS.items():
            if field.section == section and not field.is_table:
                text = basic if key in BASIC else advanced
                assert re.search(rf"^{field.name} = ", text, re.M), key
