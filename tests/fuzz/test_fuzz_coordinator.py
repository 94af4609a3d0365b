"""A peer that has the key and says what it likes harms itself: its connection ends, or the run ends
by saying why. Nothing else happens."""

from __future__ import annotations

import inspect
import re

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_link import memory_links
from message_strategies import of_type
from scripted_world import ScriptedWorld, configured
from some_values import some

from asyncrl import messages
from asyncrl.actors.coordinator.connections import ACCEPTED, Connections
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError

SMALL = st.one_of(st.integers(0, 12), st.sampled_from([-1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1]))


def said(kind: type[messages.Message]) -> st.SearchStrategy[messages.Message]:
    """A message whose numbers are often those of things that exist."""
    return of_type(kind).flatmap(
        lambda message: st.builds(lambda *numbers: likely(message, iter(numbers)), *[SMALL] * 12)
    )


def likely(value, numbers):
    """`value` with its integers replaced, as far as `numbers` reach."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return next(numbers, value)
    if isinstance(value, list):
        return [likely(inner, numbers) for inner in value]
    if isinstance(value, dict):
        return {key: likely(inner, numbers) for key, inner in value.items()}
    if isinstance(value, float):
        return value if (number := next(numbers, None)) is None else float(number)
    if isinstance(value, messages.Message | messages.Part):
        return type(value)(
            *(likely(getattr(value, name), numbers) for name in value.__struct_fields__)
        )
    return value


def buffers_for(message: messages.Message, count: int) -> st.SearchStrategy[list[bytes]]:
    """As many buffers as this message has, often of the length that it says."""
    tokens = (
        sum(head.count for head in message.heads) if isinstance(message, messages.Chunks) else 0
    )
    fitting = st.just(bytes(4 * tokens)) if 0 <= tokens < 1000 else st.just(b"")
    return st.lists(
        st.one_of(fitting, fitting, st.binary(max_size=20)), min_size=count, max_size=count
    )


def conversation(
    role: messages.Role,
) -> st.SearchStrategy[list[tuple[messages.Message, list[bytes]]]]:
    own = list(ACCEPTED[role].items())

    def one(kind: type[messages.Message], count: int):
        return said(kind).flatmap(
            lambda message: buffers_for(message, count).map(lambda buffers: (message, buffers))
        )

    usual = [one(kind, count) for kind, count in own]
    strange = st.sampled_from(messages.ALL).flatmap(
        lambda kind: st.integers(0, 3).flatmap(lambda count: one(kind, count))
    )
    return st.lists(
        st.one_of(*usual, *usual, strange) if usual else strange, min_size=1, max_size=6
    )


@pytest.mark.parametrize(
    "role", some(["rollout", "reward", "trainer", "launcher", "coordinator"], 5)
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_peer_that_says_what_it_likes_harms_itself(
    role: messages.Role, data: st.DataObject
) -> None:
    index = data.draw(st.sampled_from([1, 1, 1, 0]))
    lines = data.draw(conversation(role))
    pauses = data.draw(st.lists(st.floats(0, 3), min_size=len(lines), max_size=len(lines)))
    two = {"actors": 2}
    world = ScriptedWorld(configured(train={"steps": 3}, rollout=two, reward=two))
    world.restart_s = 100.0  # whom it replaces does not come back at once
    refused: list[str] = []

    async def intruder() -> None:
        """Comes when the run is under way."""
        await trio.sleep(1.0)
        ours, theirs = memory_links()

        async def attend() -> None:
            try:
                if role == "launcher":  # which the coordinator itself connects to
                    hello, _ = await theirs.receive()
                    await world.coordinator.converse(Peer(hello, theirs))
                else:
                    await world.coordinator.attend(theirs)
            except* EndOfStream:
                pass
            except* LinkError as errors:
                refused.extend(error.reason for error in errors.exceptions)  # type: ignore[attr-defined]
            finally:
                await theirs.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attend)
            try:
                await ours.send(messages.Hello(role, index, 0, 1))
                for (message, buffers), pause in zip(lines, pauses, strict=True):
                    await trio.sleep(pause)
                    await ours.send(message, *buffers)
                await trio.sleep(1.0)
            except LinkError:
                pass
            finally:
                with trio.CancelScope(shield=True):
                    await ours.aclose()

    async def main() -> None:
        with trio.fail_after(2000):
            outcome = await world.run(intruder)
        assert outcome.reason

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert world.store.experience.ledger.balances()
    for event in world.log.events:
        if event.__class__.__name__ == "Judged" and isinstance(event.verdict, messages.Scored):
            assert event.verdict.reward - event.verdict.reward == 0, "a reward that is not finite"


def test_each_message_that_a_role_may_send_has_a_case() -> None:
    """One without would be refused as malformed, and cost its sender the link."""
    source = inspect.getsource(Connections._dispatch)
    cases = {
        name for line in re.findall(r"case (.*):", source) for name in re.findall(r"\w+", line)
    }
    accepted = {kind.__name__ for kinds in ACCEPTED.values() for kind in kinds}
    assert accepted and not accepted - cases
