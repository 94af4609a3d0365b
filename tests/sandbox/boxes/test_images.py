"""Images of a container engine: one pull of each at a time, few in all, and a bound of the disk."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest
import trio
from box_support import RUN, settings
from container_double import calls, offers, on_path
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.entry_images import EntryImages
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.reasons import same
from asyncrl.sandbox.boxes.box_errors import ImageError
from asyncrl.sandbox.boxes.image_store import (
    SPARED_S,
    ImageStore,
    KeptImage,
    evicted,
    kept_images,
    record_path,
)
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin
from asyncrl.sandbox.boxes.providers.docker import DockerBoxes
from asyncrl.sandbox.programs.program import Ran


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return on_path(tmp_path, monkeypatch)


def pulled(double: Path) -> list[str]:
    return [call[-1] for call in calls(double) if call[0] == "pull"]


def test_each_image_is_pulled_once_and_few_at_a_time(double: Path, tmp_path: Path) -> None:
    """Four processes' worth of callers want three images at once; one is not there."""
    for name in ("a", "b"):
        offers(double, name)
    provider = DockerBoxes(settings(kind="docker", pulls=1), tmp_path)

    async def all_at_once() -> list[object]:
        wanted = ["a", "b", "none:1"] * 4
        return await asyncio.gather(*map(provider.pull, wanted), return_exceptions=True)

    came = asyncio.run(all_at_once())
    assert [result is None for result in came] == [True, True, False] * 4
    assert all(isinstance(failed, ImageError) for failed in came[2::3])
    assert sorted(name for name in pulled(double) if name != "none:1") == ["a", "b"]
    assert pulled(double).count("none:1") <= 2, "who waits for a pull that fails shares its end"
    steps = [1 if step == "+" else -1 for step in (double / "pulling").read_text()]
    assert max(itertools.accumulate(steps)) == 1
    asyncio.run(provider.pull("a"))
    assert pulled(double).count("a") == 1, "it is there"


def test_a_pull_has_a_deadline_and_leaves_no_lock(double: Path, tmp_path: Path) -> None:
    offers(double, "a", "hangs")
    slow = DockerBoxes(settings(kind="docker", pull_s=1), tmp_path)
    with pytest.raises(ImageError, match=r"was not pulled within sandbox.pull_s"):
        asyncio.run(slow.pull("a"))
    offers(double, "a")
    asyncio.run(DockerBoxes(settings(kind="docker"), tmp_path).pull("a"))


def test_the_disk_is_bounded_by_removing_what_asyncrl_pulled(double: Path, tmp_path: Path) -> None:
    for name in ("old", "used", "new"):
        offers(double, name, str(10**9))
    (double / "images" / "yours").write_text(str(10**9))  # nobody of asyncrl pulled it
    provider = DockerBoxes(settings(kind="docker", images_gb=2), tmp_path)
    folder = tmp_path / "cache/asyncrl/images/docker"
    long_ago = time.time() - 2 * SPARED_S

    async def all_three() -> None:
        for name, used in (("old", long_ago - 1), ("used", long_ago)):
            await provider.pull(name)
            os.utime(record_path(folder, name), (used, used))
        await provider.pull("yours")
        await provider.pull("new")

    asyncio.run(all_three())
    assert {path.name for path in (double / "images").iterdir()} == {"used", "new", "yours"}
    assert {kept.image for kept in kept_images(folder)} == {"used", "new"}
    (folder / "garbage.json").write_text("{")
    record_path(folder, "elsewhere").write_text('{"image": "yours", "bytes": 1}')
    assert {kept.image for kept in kept_images(folder)} == {"used", "new"}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 10_000), st.booleans()), max_size=9),
    st.integers(0, 30),
)
def test_the_images_unused_for_longest_go_and_no_more_than_must(
    drawn: list[tuple[int, float, bool]], most: int
) -> None:
    kept = [
        KeptImage(Path("-"), str(number), size, used)
        for number, (size, used, _) in enumerate(drawn)
    ]
    now = 10_000.0
    free = {str(number) for number, (_, _, is_free) in enumerate(drawn) if is_free}
    gone = evicted(kept, most, now, lambda image: image in free)
    left = [image for image in kept if image.image not in gone]
    can_go = [one for one in left if one.image in free and now - one.used >= SPARED_S]
    assert set(gone) <= free
    assert sum(image.bytes for image in left) <= most or not can_go
    for name in gone:  # each was needed: with it, the bound was exceeded
        image = kept[int(name)]
        later = [one for one in kept if one.image not in gone[: gone.index(name)]]
        assert sum(one.bytes for one in later) > most
        assert all(other.used >= image.used for other in can_go)


async def test_an_actors_attempts_wait_for_one_pull_and_fail_by_name(
    double: Path, tmp_path: Path
) -> None:
    offers(double, "a")
    origin = BoxOrigin(settings(kind="docker"), RUN, str(tmp_path))
    images = EntryImages(origin, Waits())
    ends: list[object] = []

    async def one(image: str) -> None:
        ends.append(await images.wrong({"image": image}))

    async with trio.open_nursery() as nursery:
        for image in ("a", "a", "none:1", "none:1", "-x", ""):
            nursery.start_soon(one, image)
    failed = [end for end in ends if end is not None]
    assert sorted(pulled(double)) == ["a", "none:1"]
    assert len(failed) == 3 and {end.kind for end in failed} == {"image"}  # type: ignore[attr-defined]
    before = len(calls(double))
    assert await images.wrong({"image": "a"}) is None
    assert len(calls(double)) == before, "it was there a moment ago"
    with trio.move_on_after(0.3):
        offers(double, "b", "hangs")
        await images.wrong({"image": "b"})
    offers(double, "b")
    assert await images.wrong({"image": "b"}) is None, "who was stopped holds up nobody"


def test_one_reason_for_all_images_is_one_reason() -> None:
    store = ImageStore("docker", settings(kind="docker"))
    texts = set()
    for image in ("team/a:1", "team/b@sha256:" + "0" * 64):
        said = f"Error: pull access denied for {image.split(':1')[0].split('@')[0]}, or no login"
        ran = Ran(
            stdout=b"",
            stderr=said.encode(),
            code=1,
            timed_out=False,
            truncated=False,
            seconds=1.0,
        )
        with pytest.raises(ImageError) as error:
            store.refuse(image, ran)
        texts.add(same(f"image: {error.value}"))
    assert len(texts) == 1
