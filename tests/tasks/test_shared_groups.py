"""Groups shared in a folder or a store: what a run writes another reads, and nothing that is not
so."""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from asyncrl.tasks.shared_groups import (
    FILES,
    SharedAnswer,
    SharedGroup,
    SharedReader,
    of_other_tokenizer,
    prompt_digest,
    share_id,
    write_group,
)
from asyncrl.tasks.shared_places import (
    BYTES,
    ENTRIES,
    SharedFolder,
    SharedPlace,
    SharedStore,
    shared_place,
)

OURS, THEIRS = "a" * 16, "b" * 16
PROMPT = array("i", [5, 6]).tobytes()


def group(**other: Any) -> SharedGroup:
    answers = [SharedAnswer([7, 8], [-0.5, 0.0], "stop"), SharedAnswer([9], [-1.0], "length")]
    made = SharedGroup(THEIRS, 3, 40, "tokens", [5, 6], answers)
    return msgspec.structs.replace(made, **other)


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SharedPlace:
    if request.param == "folder":
        return shared_place((tmp_path / "shared").as_uri())
    stores = pytest.importorskip("obstore.store", reason="the extra store is not installed")
    return SharedStore(stores.MemoryStore())


def reader(place: SharedPlace) -> SharedReader:
    return SharedReader(place, OURS, "tokens", vocabulary=10, most=2, max_age=4)


def test_answers_are_as_old_as_their_runs_newest_version_says(place: SharedPlace) -> None:
    for version, number in ((40, 3), (43, 4), (38, 5)):
        write_group(place, group(version=version, group=number))
    write_group(place, group(run=OURS))
    found = reader(place).read(PROMPT)
    assert [(a.origin, a.version) for a in found] == [
        (f"group 4 of run {THEIRS}", 0),
        (f"group 4 of run {THEIRS}", 0),
        (f"group 3 of run {THEIRS}", -3),
        (f"group 3 of run {THEIRS}", -3),
    ], "the third is five versions old, and the run's own is none of them"
    assert found[0].ids == array("i", [7, 8]).tobytes() and found[1].finish == "length"
    assert found[0].behaviour == array("f", [-0.5, 0.0]).tobytes()
    assert {a.source for a in found} == {"run"}
    assert reader(place).read(array("i", [5]).tobytes()) == []
    its = prompt_digest(PROMPT)
    place.remove(its, f"{THEIRS}-43-4.json")
    place.remove(its, f"{THEIRS}-43-4.json")
    assert {a.origin for a in reader(place).read(PROMPT)} == {
        f"group {number} of run {THEIRS}" for number in (3, 5)
    }


def test_of_a_folder_that_is_not_there_nothing_is_read(tmp_path: Path) -> None:
    assert reader(SharedFolder(tmp_path / "missing")).read(PROMPT) == []


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
    place: SharedPlace, other: dict[str, Any]
) -> None:
    bad, its = group(**other).sealed(), prompt_digest(PROMPT)
    place.write(its, bad.name, msgspec.json.encode(bad))
    assert write_group(place, group(group=4)) == (its, f"{THEIRS}-40-4.json")
    assert {a.origin for a in reader(place).read(PROMPT)} == {f"group 4 of run {THEIRS}"}


def test_links_and_files_that_are_no_group_are_passed_over(tmp_path: Path) -> None:
    place = SharedFolder(tmp_path)
    path = tmp_path.joinpath(*write_group(place, group()))
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
    assert reader(place).read(PROMPT) == []


def test_what_a_store_has_beside_groups_is_passed_over() -> None:
    """Objects that are too large, of another name or deeper, and more of them than are looked
    at."""
    stores = pytest.importorskip("obstore.store", reason="the extra store is not installed")
    place, its = SharedStore(stores.MemoryStore()), prompt_digest(PROMPT)
    data = msgspec.json.encode(group().sealed())
    place.write(its, f"{THEIRS}-40-4.json", data)  # of another number
    place.write(its, f"{THEIRS}-40-5.json", b"[" * 100_000)
    place.write(its, f"{THEIRS}-40-6.json", data + b" " * BYTES)
    place.write(its, f"deeper/{THEIRS}-40-3.json", data)
    place.write(f"{its}5", f"{THEIRS}-40-3.json", data)
    assert reader(place).read(PROMPT) == []
    with pytest.raises(OSError, match="larger than"):
        place.read(its, f"{THEIRS}-40-6.json")
    for number in range(ENTRIES + 10):
        place.write(its, f"0{number}", b"")
    assert len(place.names(its)) == ENTRIES and len(list(place.some())) == ENTRIES
    place.write(its, f"{THEIRS}-40-3.json", data)
    assert reader(place).read(PROMPT) == [], "it lies behind the first ones"


def test_a_store_that_says_less_of_an_object_than_it_sends_is_read_to_a_bound() -> None:
    pytest.importorskip("obstore", reason="the extra store is not installed")
    sent = list[int]()

    def endless(min_chunk_size: int) -> Iterator[bytes]:
        while True:
            sent.append(min_chunk_size)
            yield bytes(min_chunk_size)

    lying = SimpleNamespace(get=lambda path: SimpleNamespace(meta={"size": 5}, stream=endless))
    place: Any = SharedStore(lying)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="larger than"):
        place.read("its", "name")
    assert sum(sent) <= BYTES + sent[0]


def test_few_files_of_a_prompt_are_read_the_newest_first(place: SharedPlace) -> None:
    for number in range(FILES + 4):
        write_group(place, group(group=number, version=40, answers=group().answers[:1]))
    assert len(reader(place).read(PROMPT)) == FILES


def test_the_first_group_of_another_run_says_its_tokenizer(place: SharedPlace) -> None:
    assert of_other_tokenizer(place, OURS, "tokens") == ""
    write_group(place, group(run=OURS, tokenizer="old"))
    assert of_other_tokenizer(place, OURS, "tokens") == ""
    written = write_group(place, group(prompt_ids=[1]))
    assert of_other_tokenizer(place, OURS, "tokens") == ""
    assert of_other_tokenizer(place, OURS, "others") == "/".join(written)


def test_who_may_read_the_folder_may_read_its_groups(tmp_path: Path) -> None:
    """A run makes its own files for its user alone."""
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        path = tmp_path.joinpath(*write_group(SharedFolder(tmp_path), group()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2775
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.parent.chmod(0o700)  # of another user, as it were
    write_group(SharedFolder(tmp_path), group(group=4))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_group_is_written_through_a_link(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (shared / prompt_digest(PROMPT)).symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        write_group(SharedFolder(shared), group())
    assert not [*elsewhere.iterdir()]


def test_what_another_user_keeps_for_himself_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, scanned = SharedFolder(tmp_path), os.scandir
    prompt, _ = write_group(place, group())

    def scandir(path: Path) -> Any:
        if path == tmp_path / prompt:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scanned(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert reader(place).read(PROMPT) == []
    assert of_other_tokenizer(place, OURS, "others") == ""


def test_a_runs_id_is_made_once(tmp_path: Path) -> None:
    first = share_id(tmp_path)
    assert share_id(tmp_path) == first and len(first) == 16
    (tmp_path / "share.id").write_text("../../x")
    assert share_id(tmp_path) != "../../x"
