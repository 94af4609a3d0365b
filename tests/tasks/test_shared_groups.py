"""Groups shared in a folder: what a run writes another reads, and nothing that is not so."""

from __future__ import annotations

import errno
import os
import stat
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.tasks.shared_groups import (
    BYTES,
    FILES,
    SharedAnswer,
    SharedGroup,
    SharedReader,
    folder_of,
    of_other_tokenizer,
    share_id,
    write_group,
)

OURS, THEIRS = "a" * 16, "b" * 16
PROMPT = array("i", [5, 6]).tobytes()


def group(**other: Any) -> SharedGroup:
    answers = [SharedAnswer([7, 8], [-0.5, 0.0], "stop"), SharedAnswer([9], [-1.0], "length")]
    made = SharedGroup(THEIRS, 3, 40, "tokens", [5, 6], answers)
    return msgspec.structs.replace(made, **other)


def reader(folder: Path) -> SharedReader:
    return SharedReader(folder, OURS, "tokens", vocabulary=10, most=2, max_age=4)


def test_answers_are_as_old_as_their_runs_newest_version_says(tmp_path: Path) -> None:
    for version, number in ((40, 3), (43, 4), (38, 5)):
        write_group(tmp_path, group(version=version, group=number))
    write_group(tmp_path, group(run=OURS))
    found = reader(tmp_path).read(PROMPT)
    assert [(a.origin, a.version) for a in found] == [
        (f"group 4 of run {THEIRS}", 0),
        (f"group 4 of run {THEIRS}", 0),
        (f"group 3 of run {THEIRS}", -3),
        (f"group 3 of run {THEIRS}", -3),
    ], "the third is five versions old, and the run's own is none of them"
    assert found[0].ids == array("i", [7, 8]).tobytes() and found[1].finish == "length"
    assert found[0].behaviour == array("f", [-0.5, 0.0]).tobytes()
    assert {a.source for a in found} == {"run"}
    assert reader(tmp_path).read(array("i", [5]).tobytes()) == []
    assert reader(tmp_path / "missing").read(PROMPT) == []


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer": "other"},
        {"answers": [SharedAnswer([7, 10], [-1.0, -1.0], "stop")]},
        {"answers": [SharedAnswer([-1], [-1.0], "stop")]},
        {"answers": [SharedAnswer([7] * 3, [-1.0] * 3, "stop")]},
        {"answers": [SharedAnswer([7], [], "stop")]},
        {"answers": [SharedAnswer([], [], "stop")]},
        {"answers": [SharedAnswer([7], [0.5], "stop")]},
        {"answers": [SharedAnswer([7], [-1e300], "stop")]},  # infinite in float32
        {"answers": [SharedAnswer([7], [-1.0], "refused")]},
        {"prompt_ids": [5, 2**40]},
    ],
)
def test_a_group_that_cannot_be_a_response_is_passed_over(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    bad = group(**other).sealed()
    folder = folder_of(tmp_path, PROMPT)
    folder.mkdir()
    (folder / bad.name).write_bytes(msgspec.json.encode(bad))
    good = write_group(tmp_path, group(group=4))
    assert {a.origin for a in reader(tmp_path).read(PROMPT)} == {f"group 4 of run {THEIRS}"}
    assert good.parent == folder


def test_links_and_files_that_are_no_group_are_passed_over(tmp_path: Path) -> None:
    path = write_group(tmp_path, group())
    data = path.read_bytes()
    path.unlink()
    folder, name = path.parent, f"{THEIRS}-40-{{}}.json"
    (tmp_path / "elsewhere").write_bytes(data)
    (folder / name.format(3)).symlink_to(tmp_path / "elsewhere")
    (folder / name.format(4)).write_bytes(data)  # of another number
    (folder / name.format(5)).write_bytes(data.replace(b'"group":3', b'"group":5'))  # no digest
    (folder / name.format(6)).write_bytes(b"{")
    (folder / name.format(7)).write_bytes(b"[" * 100_000)
    (folder / name.format(8)).mkdir()
    with (folder / name.format(9)).open("wb") as file:
        file.truncate(BYTES + 1)
    os.mkfifo(folder / name.format(10))
    (folder / "../escape.json").write_bytes(data)
    assert reader(tmp_path).read(PROMPT) == []


def test_few_files_of_a_prompt_are_read_the_newest_first(tmp_path: Path) -> None:
    for number in range(FILES + 4):
        write_group(tmp_path, group(group=number, version=40, answers=group().answers[:1]))
    assert len(reader(tmp_path).read(PROMPT)) == FILES


def test_the_first_group_of_another_run_says_its_tokenizer(tmp_path: Path) -> None:
    assert of_other_tokenizer(tmp_path, OURS, "tokens") == ""
    write_group(tmp_path, group(run=OURS, tokenizer="old"))
    assert of_other_tokenizer(tmp_path, OURS, "tokens") == ""
    path = write_group(tmp_path, group(prompt_ids=[1]))
    assert of_other_tokenizer(tmp_path, OURS, "tokens") == ""
    assert of_other_tokenizer(tmp_path, OURS, "others") == str(path)


def test_who_may_read_the_folder_may_read_its_groups(tmp_path: Path) -> None:
    """A run makes its own files for its user alone."""
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        path = write_group(tmp_path, group())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2775
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.parent.chmod(0o700)  # of another user, as it were
    write_group(tmp_path, group(group=4))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_group_is_written_through_a_link(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    folder_of(shared, PROMPT).symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        write_group(shared, group())
    assert not [*elsewhere.iterdir()]


def test_what_another_user_keeps_for_himself_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scanned = write_group(tmp_path, group()).parent, os.scandir

    def scandir(path: Path) -> Any:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scanned(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert reader(tmp_path).read(PROMPT) == []
    assert of_other_tokenizer(tmp_path, OURS, "others") == ""


def test_a_runs_id_is_made_once(tmp_path: Path) -> None:
    first = share_id(tmp_path)
    assert share_id(tmp_path) == first and len(first) == 16
    (tmp_path / "share.id").write_text("../../x")
    assert share_id(tmp_path) != "../../x"
