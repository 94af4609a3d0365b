"""Each answer is judged by what came with it, whatever else is judged meanwhile, and its verdict is
its own; and as many are judged at a time as may be."""

from __future__ import annotations

from functools import partial

import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_link import memory_links
from trio.testing import MockClock

from asyncrl.actors.reporting import Reporter
from asyncrl.actors.reward_actor import reward_actor
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.engines.protocol import Finish
from asyncrl.messages import Drain, Drained, Scored, ScoreRequest, ScoreResult, Split
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits

Request = tuple[Split, int, bytes, bytes, Finish, float]
"""Split, prompt, ids of the answer and of the prompt, how it ended, and the seconds it takes."""
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["train", "evaluation"]),
        st.integers(0, 3),
        st.binary(min_size=4, max_size=4),
        st.binary(min_size=8, max_size=8),
        st.sampled_from(["stop", "length"]),
        st.sampled_from([0.0, 0.25, 1.5]),
    ),
    min_size=1,
    max_size=12,
)


class Pool:
    """Judges each answer in the seconds that it takes, and says what it was given."""

    def __init__(self, requests: list[Request]) -> None:
        self.seconds = {request[:5]: request[5] for request in requests}
        self.rewards = {request[:5]: float(at) for at, request in enumerate(requests)}
        self.now = self.most = 0

    async def judge(
        self, split: Split, prompt_index: int, ids: memoryview, finish: Finish, prompt: memoryview
    ) -> TimedVerdict:
        given = split, prompt_index, bytes(ids), bytes(prompt), finish
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.sleep(self.seconds[given])
        self.now -= 1
        return TimedVerdict(Scored(self.rewards[given]), self.seconds[given])


async def judged(requests: list[Request], places: int) -> None:
    ours, theirs = memory_links()
    pool, waits = Pool(requests), Waits()
    found: dict[int, ScoreResult] = {}

    async def hear(link: Link) -> None:
        async for message, _ in link:
            match message:
                case ScoreResult():
                    assert message.rollout not in found
                    found[message.rollout] = message
                case Drained():
                    return

    async with ours, theirs, trio.open_nursery() as nursery:
        actor = partial(reward_actor, concurrency=places, deadline_s=2.0)
        nursery.start_soon(actor, theirs, pool, waits, Reporter(waits))
        nursery.start_soon(hear, ours)
        for rollout, (split, index, ids, prompt, finish, _) in enumerate(requests):
            await ours.send(ScoreRequest(rollout, split, index, finish), ids, prompt)
        await trio.sleep(60)
        await ours.send(Drain())
    assert not waits.table() and pool.now == 0 and pool.most <= places
    for rollout, request in enumerate(requests):
        verdict, seconds = Scored(pool.rewards[request[:5]]), pool.seconds[request[:5]]
        assert (found[rollout].verdict, found[rollout].seconds) == (verdict, seconds)


@given(requests=REQUESTS, places=st.integers(1, 4))
def test_each_request_is_judged_by_its_own_words(requests: list[Request], places: int) -> None:
    trio.run(judged, requests, places, clock=MockClock(autojump_threshold=0))
