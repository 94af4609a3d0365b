"""Signals that tell a command to end: each is told, and none interrupts what is cleaned up."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from asyncrl.runtime.processes.told_to_end import ending, obeying


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """As in a command that a terminal started."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_that_comes_while_all_is_cleaned_up_interrupts_nothing(fails: bool) -> None:
    told, steps = list[signal.Signals](), list[str]()

    async def command() -> None:
        ended = trio.CancelScope()

        def obey(number: signal.Signals) -> None:
            told.append(number)
            ended.cancel()

        async with obeying(obey):
            with ended:
                try:
                    signal.raise_signal(signal.SIGINT)
                    await trio.sleep_forever()
                finally:
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                        signal.raise_signal(number)
                        steps.append(number.name)
                    with trio.CancelScope(shield=True):
                        await trio.testing.wait_all_tasks_blocked()
                    steps.append("closed")
            if fails:
                raise OSError("the disk is full")

    if fails:
        with pytest.RaisesGroup(OSError):
            trio.run(command, strict_exception_groups=True)
    else:
        trio.run(command, strict_exception_groups=True)
    assert told == [signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    assert steps == ["SIGINT", "SIGTERM", "SIGHUP", "closed"]


def test_a_command_of_nohup_goes_on_when_its_terminal_hangs_up() -> None:
    assert signal.SIGHUP in ending()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ending() == [signal.SIGINT, signal.SIGTERM]
