"""The file of a judge's verdicts: what is damaged or foreign is left out, and it stays bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.judges.verdict_cache import GROWTH, HEADER, VerdictCache


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "judged" / "reward-0"


def test_a_later_start_knows_the_newest(file: Path) -> None:
    cache = VerdictCache(file, most=10)
    for number in range(100):
        cache.put(f"{number:032x}", number / 100)
        assert file.read_bytes().count(b"\n") <= GROWTH * 10 + 1
    again = VerdictCache(file, most=10)
    assert len(again) == 10
    assert [again.get(f"{number:032x}") for number in range(89, 100)] == [
        None,
        *(number / 100 for number in range(90, 100)),
    ]


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_gives_no_reward_that_was_not_written(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: bool
) -> None:
    file = tmp_path_factory.mktemp("cache") / "file"
    written = {f"{number:032x}": number / 7 for number in range(5)}
    cache = VerdictCache(file, most=10)
    for key, reward in written.items():
        cache.put(key, reward)
    data = bytearray(file.read_bytes())
    at %= len(data)
    data[at] = byte
    file.write_bytes(data[:at] if cut else data)
    again = VerdictCache(file, most=10)
    assert all(again.get(key) in (None, reward) for key, reward in written.items())
    again.put("new", 1.0)  # behind a line that was cut, too
    last = VerdictCache(file, most=10)
    assert last.get("new") == 1.0
    assert all(last.get(key) == again.get(key) for key in written)


@pytest.mark.parametrize("what", ["text", "folder", "link", "large"])
def test_what_is_no_such_file_is_ignored_with_a_word(
    file: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    other = file.with_name("other")
    match what:
        case "text":
            file.write_text("mine\n")
        case "folder":
            file.mkdir()
        case "link":
            other.write_text("mine\n")
            file.symlink_to(other)
        case "large":
            file.write_bytes(f"{HEADER}\n".encode() * 10_000)
    cache = VerdictCache(file, most=4)
    cache.put("a", 1.0)
    cache.put("b", 0.5)
    assert cache.get("a") == 1.0
    assert "asked for again" in caplog.text
    assert not other.exists() or other.read_text() == "mine\n"
    assert what == "folder" or VerdictCache(file, most=4).get("b") == 0.5


def test_none_is_kept_where_none_may_be(file: Path) -> None:
    cache = VerdictCache(file, most=0)
    cache.put("a", 1.0)
    assert cache.get("a") is None and not os.path.lexists(file)
