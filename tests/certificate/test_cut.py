"""A rollout cut at any token, by whatever cuts it, is the rollout that nobody cut.

Each of these streams what a real engine samples into the real state of experience, and cuts it
after every number of tokens there is. What was streamed stays as it was, bit for bit; what follows
has the ids that no cut would have changed, or, where new weights came at the cut, those of a model
that has them from there. Log-probabilities are those of the pass that sampled, checked against
plain forward passes.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Literal, get_args

import numpy as np
import pytest
import torch
import trio
from certificate_world import VOCABULARY, random_model
from plain_loop import uniform
from some_values import some
from transformers import DynamicCache, PreTrainedModel

from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import Span

TOKENS, SEED, TEMPERATURE = 12, 5, 0.9
PROMPTS = [[3, 14, 15], [9, 2, 6, 5, 35]]
KEYS = [0, 1, 2]
"""Rollout n continues prompt n % 2 with draws of key n."""
EXACT = 2e-5
"""Distance that float32 in another order may have from a plain pass, in nats."""
KV = Literal["keep", "recompute"]
Weights = Mapping[str, torch.Tensor]


@cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The weights of version 0, and of version 1."""
    return random_model(0), random_model(1)


def weights(version: int) -> Weights:
    return {name: tensor.detach() for name, tensor in models()[version].named_parameters()}


# ------------------------------------------------------------------------------------ plain passes


@cache
def plain(rollout: int, cut: int, kv: KV) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a rollout whose first `cut` tokens are of version 0 and the rest
    of version 1. With `keep`, what version 1 attends to of the tokens before is what version 0 made
    of them."""
    old, new = models()
    ids, behaviour = list[int](), list[float]()
    past: DynamicCache | None = None
    while len(ids) < TOKENS:
        known = [*PROMPTS[rollout % 2], *ids]
        if len(ids) < cut or kv == "recompute":
            logits = forward(old if len(ids) < cut else new, known)
        else:
            if past is None:
                past = DynamicCache(config=old.config)
                forward(old, known[:-1], past)
            logits = forward(new, known[-1:], past)
        log = (logits.float() / TEMPERATURE).log_softmax(-1)
        below = log.exp().double().cumsum(0)
        ids.append(int((below <= uniform(SEED, KEYS[rollout], len(ids)) * below[-1]).sum()))
        behaviour.append(float(log[ids[-1]]))
    return ids, behaviour


@torch.no_grad()
def forward(
    model: PreTrainedModel, ids: Sequence[int], past: DynamicCache | None = None
) -> torch.Tensor:
    """The logits after the last id."""
    start = past.get_seq_length() if past is not None else 0
    positions = torch.arange(start, start + len(ids))[None]
    logits: torch.Tensor = model(
        input_ids=torch.tensor([list(ids)]),
        position_ids=positions,
        past_key_values=past,
        use_cache=past is not None,
    ).logits[0, -1]
    return logits


# ----------------------------------------------------------------------------------------- the cut


class Story:
    """Three rollouts in the state of experience, streamed by whichever engine has them, from the
    first token to the last."""

    def __init__(self) -> None:
        self.experience = Experience()
        for group, prompt in enumerate(PROMPTS):
            members = len(KEYS[group::2])
            self.experience.apply(
                e.Admitted(
                    group,
                    self.experience.next_rollout,
                    members,
                    "train",
                    group,
                    np.array(prompt, np.int32).tobytes(),
                    TOKENS,
                )
            )
        self.ids = {
            (group, member): number
            for number, (group, member) in zip((0, 2, 1), ((0, 0), (0, 1), (1, 0)), strict=True)
        }
        self.experience.apply(e.Published(0))
        self.late = 0

    @property
    def rollouts(self) -> dict[int, Rollout]:
        """By number in this file."""
        return {
            self.ids[group.id, place]: member
            for group in self.experience.groups.values()
            for place, member in enumerate(group.members)
        }

    def lease(self, owner: str, numbers: Sequence[int]) -> list[Request]:
        """The request to an engine: everything that is known, and what is left of the budget."""
        requests = []
        for number in numbers:
            rollout = self.rollouts[number]
            attempt = rollout.attempt + 1
            self.experience.apply(e.Leased(rollout.id, owner, attempt))
            known = np.frombuffer(
                self.experience.groups[rollout.group].prompt + bytes(rollout.ids), np.int32
            )
            requests.append(
                Request(
                    rollout.id,
                    attempt,
                    KEYS[number],
                    known,
                    rollout.tokens,
                    rollout.remaining,
                    TEMPERATURE,
                )
            )
        return requests

    def take(self, owner: str, chunks: Sequence[Chunk]) -> None:
        """Book what an engine streamed; of a rollout that it no longer has, as late."""
        for chunk in chunks:
            rollout = self.experience.rollouts[chunk.rollout]
            if (rollout.holder, rollout.attempt) != (owner, chunk.attempt):
                self.late += len(chunk.ids)
                continue
            if len(chunk.ids):
                held = bytes(rollout.ids), bytes(rollout.behaviour)
                self.experience.apply(
                    e.Extended(
                        chunk.rollout,
                        chunk.attempt,
                        chunk.version,
                        chunk.start,
                        chunk.ids.tobytes(),
                        chunk.behaviour.tobytes(),
                    )
                )
                assert (rollout.ids.startswith(held[0]), rollout.behaviour.startswith(held[1])) == (
                    True,
                    True,
                )
            assert len(rollout.ids) == len(rollout.behaviour) == 4 * rollout.tokens
            assert [span.start for span in rollout.spans] + [rollout.tokens] == [0] + [
                span.end for span in rollout.spans
            ]
            if chunk.finish == "length":
                self.experience.apply(e.Sealed(rollout.id, rollout.attempt, "length"))
            elif chunk.finish:
                self.back(rollout, "interrupted")

    def back(self, rollout: Rollout, reason: str) -> None:
        self.experience.apply(e.Requeued(rollout.id, rollout.attempt, reason))


class Deaf(Story):
    """A sink for what a lost engine would still say, so that it can be used again."""

    def take(self, owner: str, chunks: Sequence[Chunk]) -> None:
        pass


@cache
def engine_of(name: str, kv: KV) -> EmbeddedEngine:
    """One that streams every token by itself. Each story leaves it empty."""
    return EmbeddedEngine(
        copy.deepcopy(models()[0]),
        EmbeddedOptions(
            slots=4,
            context_tokens=32,
            chunk_tokens=1,
            stop_ids=frozenset(),
            run_seed=SEED,
            kv=kv,
            packed_from=5,
        ),
    )


Cut = Callable[[Story, EmbeddedEngine, int, bool], Awaitable[None]]


async def decode(
    story: Story,
    owner: str,
    engine: EmbeddedEngine,
    ends: int = 3,
    *,
    after: int = 0,
    cut: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Book what the engine streams until it has said of `ends` rollouts that they end. `cut` is
    called once, when each rollout has `after` tokens; where it says so the engine is heard no more.
    """

    async def emit(chunks: Sequence[Chunk]) -> None:
        nonlocal cut, ends
        story.take(owner, chunks)
        ends -= sum(bool(chunk.finish) for chunk in chunks)
        if cut is not None and all(rollout.tokens == after for rollout in story.rollouts.values()):
            due, cut = cut, None
            if await due():
                nursery.cancel_scope.cancel()
        if not ends:
            nursery.cancel_scope.cancel()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run, emit)


async def published(story: Story, engine: EmbeddedEngine) -> None:
    await engine.load(1, weights(1))
    story.experience.apply(e.Published(1))


async def not_at_all(story: Story, engine: EmbeddedEngine, after: int, renewed: bool) -> None:
    """Nothing is cut: new weights may come while it is decoded."""

    async def cut() -> bool:
        if renewed:
            await published(story, engine)
        return False

    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine, after=after, cut=cut)


async def by_an_interrupt(story: Story, engine: EmbeddedEngine, after: int, renewed: bool) -> None:
    """Asked back, and leased to the same engine again."""

    async def cut() -> bool:
        engine.interrupt([rollout.id for rollout in story.rollouts.values()])
        return False

    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine, after=after, cut=cut)
    if renewed:
        await published(story, engine)
    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine)


async def by_an_interrupt_of_one(
    story: Story, engine: EmbeddedEngine, after: int, renewed: bool
) -> None:
    """Its neighbours are done before it goes on. Nothing new comes, or they would not be of one
    version."""
    assert not renewed

    async def cut() -> bool:
        engine.interrupt([story.rollouts[1].id])
        return False

    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine, after=after, cut=cut)
    engine.submit(story.lease("one", [1]))
    await decode(story, "one", engine, 1)


async def by_the_loss_of_its_engine(
    story: Story, engine: EmbeddedEngine, after: int, renewed: bool
) -> None:
    """Lose the engine that had it; another one goes on from what was streamed."""

    async def cut() -> bool:
        return True

    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine, after=after, cut=cut)
    await go_on_elsewhere(story, "actor_lost", renewed)
    engine.interrupt(list(story.experience.rollouts))
    await decode(Deaf(), "one", engine)


async def by_the_end_of_its_lease(
    story: Story, engine: EmbeddedEngine, after: int, renewed: bool
) -> None:
    """Another engine has it while the first one streams on: what that one says is late."""

    async def cut() -> bool:
        await go_on_elsewhere(story, "lease_expired", renewed)
        return False

    engine.submit(story.lease("one", range(3)))
    await decode(story, "one", engine, after=after, cut=cut)


async def go_on_elsewhere(story: Story, reason: str, renewed: bool) -> None:
    for rollout in story.rollouts.values():
        story.back(rollout, reason)
    other = engine_of("two", "keep")
    await other.load(0, weights(0))
    if renewed:
        await published(story, other)
    other.submit(story.lease("two", range(3)))
    await decode(story, "two", other)


async def told(cut: Cut, after: int, kv: KV, renewed: bool) -> Story:
    """The whole story, cut after this number of tokens."""
    story, engine = Story(), engine_of("one", kv)
    await engine.load(0, weights(0))
    await cut(story, engine, after, renewed)
    assert all(rollout.finish == "length" for rollout in story.rollouts.values())
    return story


CUTS: list[Cut] = [
    by_an_interrupt,
    by_an_interrupt_of_one,
    by_the_loss_of_its_engine,
    by_the_end_of_its_lease,
]


@cache
def uncut(kv: KV) -> dict[int, tuple[list[int], list[float]]]:
    found = trio.run(told, not_at_all, 1, kv, False)
    return {number: read(rollout) for number, rollout in found.rollouts.items()}


@pytest.fixture(scope="module", autouse=True)
def uncut_first() -> None:
    """It runs trio, which a test that is run by trio cannot."""
    for kv in get_args(KV):
        uncut(kv)


def read(rollout: Rollout) -> tuple[list[int], list[float]]:
    return np.frombuffer(rollout.ids, np.int32).tolist(), np.frombuffer(
        rollout.behaviour, np.float32
    ).tolist()


def check(
    story: Story, expected: Mapping[int, tuple[list[int], list[float]]], spans: list[Span]
) -> None:
    for number, rollout in story.rollouts.items():
        ids, behaviour = read(rollout)
        assert ids == expected[number][0], number
        assert behaviour == pytest.approx(expected[number][1], abs=EXACT), number
        assert rollout.spans == spans


@pytest.mark.parametrize("kv", some(["keep", "recompute"]))
def test_an_uncut_rollout_is_that_of_plain_passes(kv: KV) -> None:
    assert len({tuple(ids) for ids, _ in uncut(kv).values()}) == 3
    for number, (ids, behaviour) in uncut(kv).items():
        assert ids == plain(number, TOKENS, kv)[0] and behaviour == pytest.approx(
            plain(number, TOKENS, kv)[1], abs=EXACT
        )
        assert max(ids) < VOCABULARY


@pytest.mark.parametrize("kv", some(["keep", "recompute"]))
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
async def test_pain_17_cut_after_any_token_and_continued_it_is_the_uncut_rollout(
    cut: Cut, kv: KV
) -> None:
    for after in range(1, TOKENS):
        story = await told(cut, after, kv, False)
        check(story, uncut(kv), [Span(0, 0, TOKENS)])
        before = {
            number: np.array(behaviour[:after], np.float32).tobytes()
            for number, (_, behaviour) in uncut(kv).items()
        }
        assert {
            number: bytes(rollout.behaviour[: 4 * after])
            for number, rollout in story.rollouts.items()
        } == before
        assert story.late == (3 * (TOKENS - after) if cut is by_the_end_of_its_lease else 0)


@pytest.mark.parametrize("kv", some(["keep", "recompute"]))
@pytest.mark.parametrize(
    "cut",
    some([by_an_interrupt, not_at_all, by_the_loss_of_its_engine, by_the_end_of_its_lease], 4),
    ids=lambda cut: cut.__name__,
)
async def test_where_new_weights_come_at_the_cut_the_rest_is_theirs(cut: Cut, kv: KV) -> None:
    """An engine that was not interrupted keeps its cache or recomputes it; one that is given a
    prefix has to compute it."""
    attends: KV = kv if cut is not_at_all else "recompute"
    changed = 0
    for after in range(1, TOKENS):
        story = await told(cut, after, kv, True)
        expected = {number: plain(number, after, attends) for number in range(3)}
        check(story, expected, [Span(0, 0, after), Span(1, after, TOKENS)])
        changed += any(expected[number][0] != uncut(kv)[number][0] for number in range(3))
    assert changed == TOKENS - 1, "what was published does not show"


def test_what_was_kept_and_what_is_recomputed_can_be_told_apart() -> None:
    assert any(
        plain(number, after, "keep")[0] != plain(number, after, "recompute")[0]
        for number in range(3)
        for after in range(1, TOKENS)
    )
