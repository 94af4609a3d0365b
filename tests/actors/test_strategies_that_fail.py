"""A strategy that raises, or returns what it may not, in the middle of a run: one sentence with its
name and line, nothing lost, and the corrected file goes on from there."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.eligibility import Eligibility
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.errors import input_error
from asyncrl.config.strategies import StrategyError
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.messages import Scored, Split


class Prompts:
    """Ten prompts of one token, and their encoder."""

    sampled = embedded = 100

    def size(self, split: Split) -> int:
        return 10

    def prompt(self, split: Split, index: int) -> str:
        return "a"

    def encode(self, text: str) -> list[int]:
        return [5]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a user's strategy, on the Python path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # bytecode is told apart by the second and the size, and a corrected file may have both
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "failing.py"
    sys.modules.pop("failing", None)


def write(file: Path, code: str) -> None:
    file.write_text(code)
    sys.modules.pop("failing", None)
    importlib.invalidate_caches()


SIZING = """class Mine:
    def __init__(self, least, most):
        self.least, self.most = least, most
    def size(self, history, prompt_index):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 // len(history.recent)", "failed in failing.py, line 5 (ZeroDivisionError"),
        ("return self.most + 1", "a group of 5; return a whole number from 1 to 4"),
        ("return 0", "a group of 0; return a whole number from 1 to 4"),
        ("return 2.0", "a group of 2.0; return a whole number from 1 to 4"),
        ("return True", "a group of True; return a whole number from 1 to 4"),
    ],
)
async def test_a_sizing_that_fails_admits_nothing_and_goes_on_corrected(
    mine: Path, body: str, said: str
) -> None:
    store = EventStore(Experience(), MemoryLog())
    store.record(e.Published(0))
    config = configured(
        rollout={"sizing": "failing:Mine", "group_size": 2, "group_size_max": 4, "k_min": 1}
    )
    write(mine, SIZING.format(body=body))
    prompts = PromptSource(Prompts(), Prompts(), seed=0, epochs=0)
    with pytest.raises(StrategyError) as caught:
        Admission(store, prompts, config).admit(1)
    text = str(caught.value)
    assert text.startswith("the sizing 'failing:Mine' ") and said in text and text.endswith(".")
    assert input_error(caught.value) is caught.value, "so the actor ends, and is not started again"
    assert not store.experience.groups and store.experience.next_group == 0
    write(mine, SIZING.format(body="return 3"))
    Admission(store, prompts, config).admit(1)
    (group,) = store.experience.groups.values()
    assert len(group.members) == 3 and group.id == 0


def judged() -> tuple[EventStore, Group]:
    """A group of two, judged 0 and 1."""
    store, prompt = EventStore(Experience(), MemoryLog()), struct.pack("<i", 5)
    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, 2, "train", 0, prompt, 1))
    for member, reward in enumerate((0.0, 1.0)):
        store.record(e.Leased(member, "rollout-0", 1))
        store.record(e.Extended(member, 1, 0, 0, prompt, struct.pack("<f", -1.0)))
        store.record(e.Sealed(member, 1, "length"))
        store.record(e.Judged(member, Scored(reward)))
    return store, store.experience.groups[0]


async def test_a_filter_that_fails_drops_nothing_and_goes_on_corrected(mine: Path) -> None:
    store, group = judged()
    config = configured(rollout={"filter": "failing:Mine"})
    code = (
        "from asyncrl.algorithms.selection.filters import GroupFilter\n"
        "class Mine(GroupFilter):\n    def keeps(self, group):\n        return {}\n"
    )
    write(mine, code.format("group.nothing"))
    with pytest.raises(StrategyError, match=r"filter 'failing:Mine' failed in failing.py, line 4"):
        Eligibility(store, config).keep_group(group, 0)
    assert store.experience.ledger.rollouts.discarded == {} and group.complete
    write(mine, code.format("len(group.rewards) > 2"))
    assert not Eligibility(store, config).keep_group(group, 0)
    assert store.experience.ledger.rollouts.discarded == {"failing:Mine": 2}


KEEP = """class Mine:
    def choose(self, members, count, draw):
        {body}
"""
MISSED = "of 2 members; return one position or more, from 0 to 1, each once, and resume the run."


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return members.best", "failed in failing.py, line 3 (AttributeError: "),
        ("yield count // 0", "failed in failing.py, line 3 (ZeroDivisionError: "),
        ("return None", "(TypeError: "),
        ("return []", f"keeps [] {MISSED}"),
        ("return [2]", f"keeps [2] {MISSED}"),
        ("return [1, 1]", f"keeps [1, 1] {MISSED}"),
        ("return [-1]", f"keeps [-1] {MISSED}"),
        ("return [True, False]", f"keeps [True, False] {MISSED}"),
        ("return [members[0]]", "keeps [JudgedMember(reward=0.0"),
    ],
)
async def test_a_keep_rule_that_fails_drops_nothing_and_goes_on_corrected(
    mine: Path, body: str, said: str
) -> None:
    store, group = judged()
    rollout = {"group_size": 2, "k_min": 1, "filter": "none"}
    config = configured(rollout=rollout, train={"keep": "failing:Mine"})
    write(mine, KEEP.format(body=body))
    with pytest.raises(StrategyError) as caught:
        Eligibility(store, config).keep_group(group, 0)
    text = str(caught.value)
    assert text.startswith("the keep rule 'failing:Mine' ") and said in text
    assert text.endswith("resume the run.") and text.isprintable()
    assert input_error(caught.value) is caught.value
    assert store.experience.ledger.rollouts.discarded == {} and group.complete
    write(mine, KEEP.format(body="return [1]"))
    kept = Eligibility(store, config).keep_group(group, 0)
    assert [member.id for member in kept] == [1]


CURRICULUM = """from asyncrl.algorithms.selection.curriculum import NextPrompt
class Mine:
    def __init__(self, stream):
        pass
    def next(self, history, live):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return history.nothing", "failed in failing.py, line 6 (AttributeError"),
        ("return 3", "chooses 3; return None, or a NextPrompt with one of the 10 prompts"),
        ("return NextPrompt(10, 1)", "chooses NextPrompt(prompt_index=10, cursor=1); return None"),
        ("return NextPrompt(-1, 1)", "chooses NextPrompt(prompt_index=-1, cursor=1); return None"),
        ("return NextPrompt(2.0, 1)", "chooses NextPrompt(prompt_index=2.0, "),
        ("return NextPrompt(2, None)", "chooses NextPrompt(prompt_index=2, cursor=None)"),
    ],
)
def test_a_curriculum_that_fails_chooses_nothing(mine: Path, body: str, said: str) -> None:
    write(mine, CURRICULUM.format(body=body))
    prompts = PromptSource(Prompts(), Prompts(), seed=0, epochs=0, curriculum="failing:Mine")
    with pytest.raises(StrategyError) as caught:
        prompts.next(History(), set())
    text = str(caught.value)
    assert text.startswith("the curriculum 'failing:Mine' ") and said in text
    assert text.endswith("resume the run.") and text.isprintable()
