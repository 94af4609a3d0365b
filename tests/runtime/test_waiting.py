"""Work that takes long is said, once, and quick work is not."""

from __future__ import annotations

import threading

from asyncrl.runtime.waiting import waiting


def test_each_work_that_takes_long_is_said_once() -> None:
    said, heard = list[str](), threading.Semaphore(0)

    def say(sentence: str) -> None:
        said.append(sentence)
        heard.release()

    with waiting(0.01, say) as doing:
        for work in ("reading", "judging"):
            doing(work)
            assert heard.acquire(timeout=60)
            assert not heard.acquire(timeout=0.05)  # it goes on, and is not said again
    assert said == ["reading …", "judging …"]


def test_nothing_is_said_of_what_is_quick() -> None:
    said = list[str]()
    with waiting(60, said.append) as doing:
        doing("reading")
    assert not said
