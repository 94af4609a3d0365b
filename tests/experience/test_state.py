"""One life after another, told event by event: what becomes due, in which order, and what is
refused."""

from __future__ import annotations

import copy
import struct

import msgspec
import pytest

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.experience import Experience, fold
from asyncrl.experience.recovery import recovered
from asyncrl.experience.snapshot import Snapshot
from asyncrl.messages import NoVerdict, Scored, Span, Split

PROMPT = b"\5\0\0\0\6\0\0\0"


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


class Story:
    """Applies events with the tedious parts filled in."""

    def __init__(self) -> None:
        self.experience = Experience()

    def __call__(self, *events: e.AnyEvent) -> None:
        for event in events:
            self.experience.apply(event)

    def admit(
        self, size: int = 2, split: Split = "train", budget: int = 8, version: int | None = None
    ) -> int:
        x = self.experience
        self(
            e.Admitted(
                x.next_group, x.next_rollout, size, split, x.prompts[split], PROMPT, budget, version
            )
        )
        return x.next_group - 1

    def lease(self, *rollouts: int) -> None:
        for rollout in rollouts:
            self(e.Leased(rollout, "rollout-0", self.experience.rollouts[rollout].attempt + 1))

    def extend(self, rollout: int, count: int, version: int = 0) -> None:
        r = self.experience.rollouts[rollout]
        self(
            e.Extended(
                rollout, r.attempt, version, r.tokens, ints(*range(count)), floats(*[-1.0] * count)
            )
        )

    def seal(self, *rollouts: int) -> None:
        for rollout in rollouts:
            self(e.Sealed(rollout, self.experience.rollouts[rollout].attempt, "stop"))

    def finish(
        self, *rollouts: int, version: int = 0, tokens: int = 3, reward: float = 1.0
    ) -> None:
        for rollout in rollouts:
            self.lease(rollout)
            self.extend(rollout, tokens, version)
            self.seal(rollout)
            self(e.Judged(rollout, Scored(reward)))


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_group_from_prompt_to_publication(story: Story) -> None:
    x = story.experience
    story(e.Published(0))
    group = story.admit(size=2)
    assert [r.id for r in x.to_lease("train", 9)] == [0, 1]
    story.lease(0, 1)
    assert x.to_lease("train", 9) == []
    story.extend(0, 3)
    story.extend(0, 2)
    story.extend(0, 1, version=1)
    rollout = x.rollouts[0]
    assert rollout.spans == [Span(0, 0, 5), Span(1, 5, 6)]
    assert (rollout.tokens, rollout.remaining) == (6, 2)
    assert rollout.ids == ints(0, 1, 2, 0, 1, 0)
    story.extend(1, 1)
    story.seal(1, 0)
    assert [r.id for r in x.to_judge()] == [1, 0]
    assert (x.queue_items, x.queue_bytes) == (2, 7 * 8)
    assert [r.id for r in x.to_judge(after=x.rollouts[1].sealed)] == [0]
    story(e.Judged(0, Scored(1.0)))
    assert x.ready() == []
    story(e.Judged(1, Scored(0.5)))
    assert [g.id for g in x.ready()] == [group]
    assert x.ready()[0].rewards == [1.0, 0.5]
    story(e.Published(1), e.Taken(1, [0, 1]))
    assert (x.ready(), x.queue_items, x.queue_bytes, x.step) == ([], 0, 0, 1)
    assert [r.id for r in x.taken()] == [0, 1]
    story(e.Trained(0, 4, {"stale": 2}), e.Trained(1, 0, {"icepop": 1}))
    assert x.rollouts == {} and x.groups_live == 1, (
        "live until the version its step makes is published"
    )
    story(e.Published(1))
    assert x.groups_live == 1
    story(e.Published(2))
    assert x.groups_live == 0 and x.groups == {}
    assert x.ledger.summary() == {
        "tokens": {"generated": 7, "trained": 4, "discarded": {"icepop": 1, "stale": 2}, "live": 0},
        "rollouts": {"admitted": 2, "trained": 1, "discarded": {"icepop": 1}, "live": 0},
    }


def test_requeued_rollouts_keep_their_tokens_and_go_first_the_oldest_first(story: Story) -> None:
    x = story.experience
    story.admit(size=4)
    story.lease(1, 2, 3)
    story.extend(1, 2)
    story(e.Requeued(3, 1, "owner died"), e.Requeued(1, 1, "owner died"))
    assert [r.id for r in x.to_lease("train", 9)] == [1, 3, 0]
    assert [r.id for r in x.to_lease("train", 1)] == [1]
    assert x.rollouts[1].resumable and not x.rollouts[0].resumable
    assert (x.rollouts[1].tokens, x.rollouts[1].holder) == (2, "")
    story(e.Leased(1, "rollout-1", 2))
    assert [r.id for r in x.to_lease("train", 9)] == [3, 0]
    story.extend(1, 1, version=3)
    assert x.rollouts[1].spans == [Span(0, 0, 2), Span(3, 2, 3)]


def test_the_oldest_finished_group_goes_first_and_waits_for_no_older_one(story: Story) -> None:
    x = story.experience
    for _ in range(4):
        story.admit(size=1)
    story.finish(3, version=1)
    story.finish(2, version=0)
    assert [g.id for g in x.ready()] == [2, 3], (
        "group 2 has the older tokens; groups 0 and 1 are not finished, and not waited for"
    )
    story.finish(1, version=1)
    assert [g.id for g in x.ready()] == [2, 1, 3], "of one version, the group admitted first"


def test_a_group_completes_around_its_tombstones(story: Story) -> None:
    x = story.experience
    story.admit(size=3)
    story.finish(0)
    story.lease(1)
    story.extend(1, 2)
    story(e.Buried(1, "attempts"))
    assert x.ready() == [] and x.rollouts.keys() == {0, 2}
    story(e.Buried(2, "attempts"))
    assert x.ready()[0].rewards == [1.0]
    assert [m.status for m in x.ready()[0].members] == [
        RolloutStatus.JUDGED,
        RolloutStatus.BURIED,
        RolloutStatus.BURIED,
    ]
    story(e.Taken(0, [0]), e.Trained(0, 3, {}), e.Published(1))
    assert x.groups_live == 0
    assert x.ledger.tokens.discarded == {"attempts": 2} and x.ledger.rollouts.discarded == {
        "attempts": 2
    }


def test_a_group_of_tombstones_is_ready_to_be_dropped(story: Story) -> None:
    x = story.experience
    story.admit(size=2)
    story(e.Buried(0, "attempts"), e.Buried(1, "attempts"))
    assert x.ready()[0].rewards == []
    story(e.Dropped(0, "too_few_verdicts"))
    assert (x.groups_live, x.groups, x.ready()) == (0, {}, [])
    assert x.ledger.rollouts.discarded == {"attempts": 2}


def test_no_verdict_is_no_reward_and_leaves_when_its_group_is_taken(story: Story) -> None:
    x = story.experience
    story.admit(size=2)
    story.finish(0)
    story.lease(1)
    story.extend(1, 2)
    story.seal(1)
    story(e.Judged(1, NoVerdict("timeout")))
    assert x.ready()[0].rewards == [1.0]
    with pytest.raises(ImpossibleEvent, match="or has no reward"):
        story(e.Taken(0, [0, 1]))
    assert x.queue_items == 2
    story(e.Taken(0, [0]))
    assert (x.queue_items, x.queue_bytes) == (0, 0)
    assert x.ledger.tokens.discarded == {"no_verdict": 2} and x.ledger.rollouts.discarded == {
        "no_verdict": 1
    }


def test_dropping_a_group_discards_what_is_left_of_it_wherever_it_is(story: Story) -> None:
    x = story.experience
    story.admit(size=5)
    story.finish(0)
    story.lease(1, 2, 3)
    story.extend(1, 2)
    story.extend(2, 1)
    story.seal(2)
    story(e.Requeued(3, 1, "owner died"), e.Dropped(0, "stale"))
    assert (x.rollouts, x.groups, x.groups_live, x.queue_items, x.queue_bytes) == ({}, {}, 0, 0, 0)
    assert x.to_lease("train", 9) == [] and x.to_judge() == []
    with pytest.raises(ImpossibleEvent, match="not live"):
        story(e.Extended(1, 1, 0, 2, ints(1), floats(0)))
    story(e.LateTokens(1))
    assert x.ledger.tokens.discarded == {"stale": 6, "late": 1} and x.ledger.rollouts.discarded == {
        "stale": 5
    }
    assert x.ledger.balances()


def test_evaluation_is_pinned_and_apart(story: Story) -> None:
    x = story.experience
    story.admit(size=1, split="evaluation", version=3)
    story.admit(size=1)
    assert [r.id for r in x.to_lease("evaluation", 9)] == [0] and [
        r.id for r in x.to_lease("train", 9)
    ] == [1]
    assert (x.prompts["evaluation"], x.prompts["train"], x.groups_live) == (1, 1, 1)
    story.lease(0)
    with pytest.raises(ImpossibleEvent, match="pinned to version 3"):
        story.extend(0, 1, version=4)
    story.extend(0, 1, version=3)
    story.seal(0)
    story(e.Judged(0, Scored(1.0)))
    assert [g.id for g in x.ready("evaluation")] == [0] and x.ready() == [] and x.queue_items == 0
    with pytest.raises(ImpossibleEvent, match="evaluation"):
        story(e.Taken(3, [0]))
    story(e.Dropped(0, "evaluation"))
    assert x.ledger.tokens.discarded == {"evaluation": 1}


def test_a_restarted_prompt_does_not_move_the_cursor(story: Story) -> None:
    story.admit()
    story(e.Dropped(0, "stale", restart=True))
    assert story.experience.restarts == {0: 0}
    story(e.Admitted(1, 2, 2, "train", 0, PROMPT, 8, None, restarts=0))
    assert (
        story.experience.prompts["train"] == 1
        and story.experience.groups_live == 1
        and not story.experience.restarts
    )
    with pytest.raises(ImpossibleEvent, match="does not wait for a restart"):
        story(e.Admitted(2, 4, 2, "train", 0, PROMPT, 8, None, restarts=0))


def test_the_age_of_what_was_admitted_since_the_checkpoint_is_what_it_was(story: Story) -> None:
    """Nothing is published again by a recovery, and groups keep the version they began under."""
    story.admit(size=1)
    base = Experience.of(
        msgspec.msgpack.decode(msgspec.msgpack.encode(story.experience.snapshot()), type=Snapshot)
    )
    since = [
        e.Published(1),
        e.Admitted(1, 1, 1, "train", 1, PROMPT, 8, None),
        e.Published(2),
        e.Admitted(2, 2, 1, "train", 2, PROMPT, 8, None),
    ]
    story(*since)
    x = recovered(base, since)
    lived = {number: group.admitted_version for number, group in story.experience.groups.items()}
    assert lived == {0: 0, 1: 1, 2: 2}
    assert {number: group.admitted_version for number, group in x.groups.items()} == lived
    assert x.version is None


def test_what_a_crash_undid_is_taken_again_first_and_as_it_was(story: Story) -> None:
    for _ in range(4):
        story.admit(size=2)
    story.finish(0, 2, 3, 4, 5)
    story.lease(1)
    story.extend(1, 2)
    story.seal(1)
    story(e.Judged(1, NoVerdict("timeout")))
    story(e.Taken(0, [0]))
    base = Experience.of(
        msgspec.msgpack.decode(msgspec.msgpack.encode(story.experience.snapshot()), type=Snapshot)
    )
    since = [
        e.Taken(0, [4, 5]),
        *(e.Trained(n, 3, {}) for n in (0, 4, 5)),
        e.Published(1),
        e.Taken(1, [2, 3]),
    ]
    story(*since)
    x = recovered(base, since)
    assert (
        x.ledger.tokens.trained == 0
        and x.ledger.tokens.discarded == {"no_verdict": 2}
        and x.ledger.balances()
    )
    assert (x.ready(), x.taken(), x.groups_untaken, x.queue_items, x.queue_bytes) == (
        [],
        [],
        4,
        5,
        5 * 3 * 8,
    )
    for refused in (
        e.Taken(0, [4, 5]),
        e.Taken(1, [0]),
        e.Dropped(2, "filtered"),
        e.Discarded(4, "filtered"),
        e.Published(1),
    ):
        with pytest.raises(ImpossibleEvent, match=r"first|again|repeated"):
            x.apply(refused)
    for taken in (e.Taken(0, [0]), e.Taken(0, [4, 5]), e.Taken(1, [2, 3])):
        assert x.prescribed is not None and x.prescribed[0] == taken.step
        x.apply(taken)
    for event in since[1:-1]:
        x.apply(event)
    assert x.prescribed is None and x == story.experience


def test_members_that_are_left_out_end_with_the_taking(story: Story) -> None:
    """They count for the prompt's solve rate, and are not compared with what is trained."""
    x = story.experience
    story.admit(size=4)
    story.admit(size=1)
    story.finish(0, 1, 3, 4)
    story.lease(2)
    story.extend(2, 1)
    for refused in (e.Taken(0, [0], [4]), e.Taken(0, [0], [1]), e.Taken(0, [4], [0])):
        with pytest.raises(ImpossibleEvent, match=r"leaves out"):  # it is not complete, or another
            x.apply(refused)
    story.seal(2)
    story(e.Judged(2, NoVerdict("timeout")))
    visit = x.history.seen[0]
    assert (visit.count, visit.visits) == (3.0, 1)
    for left_out in ([0], [1, 1], [2], [9]):
        with pytest.raises(ImpossibleEvent):
            x.apply(e.Taken(0, [0], left_out))
    before = x.history.posterior(0)
    story(e.Taken(0, [0, 3], [1]))
    group = x.groups[0]
    assert [member.id for member in group.scored] == [0, 3]
    assert len(group.rewards) == len(group.parts) == len(group.facts.lengths) == 2
    assert x.ledger.rollouts.discarded == {"not_chosen": 1, "no_verdict": 1}
    assert x.ledger.balances() and x.ledger.tokens.discarded["not_chosen"] == 3
    assert x.history.posterior(0) == before and sorted(x.rollouts) == [0, 3, 4]
    story(e.StoredForReplay(0, 3), e.Trained(0, 3, {}), e.Trained(3, 3, {}), e.Published(1))
    assert 0 not in x.groups and x.replay_buffer.kept[0].rewards == (1.0, 1.0)


@pytest.mark.parametrize("checkpoint_first", [True, False])
def test_a_crash_repeats_what_was_left_out(story: Story, checkpoint_first: bool) -> None:
    """A rollout left out before the checkpoint has ended; one left out after it is left out
    again."""
    story.admit(size=3)
    story.finish(0, 1, 2)
    taken = e.Taken(0, [0, 2], [1])
    if checkpoint_first:
        story(taken)
    written = msgspec.msgpack.encode(story.experience.snapshot())
    base = Experience.of(msgspec.msgpack.decode(written, type=Snapshot))
    if not checkpoint_first:
        story(taken)
    x = recovered(base, [] if checkpoint_first else [taken])
    assert x.prescribed is not None and [r.id for r in x.prescribed[1]] == [0, 2]
    assert x.ready() == [] and x.ledger.balances()
    x.apply(e.Taken(0, [0, 2], [] if checkpoint_first else [1]))
    assert x == story.experience and [member.id for member in x.groups[0].scored] == [0, 2]


def test_a_journal_without_choices_is_read() -> None:
    old = msgspec.msgpack.encode(["Taken", 3, [4, 5]])
    assert msgspec.msgpack.decode(old, type=e.AnyEvent) == e.Taken(3, [4, 5], [])
    member = Experience()
    member.apply(e.Admitted(0, 0, 1, "train", 0, PROMPT, 8))
    written = msgspec.json.decode(msgspec.json.encode(member.snapshot()))
    for group in written[12]:
        for fields in group["members"]:
            assert fields.pop("left_out") is False
    assert Experience.of(msgspec.convert(written, Snapshot, strict=False)).groups[0].members


def test_a_checkpoint_is_remembered(story: Story) -> None:
    story(e.Checkpointed(0, "a"), e.Checkpointed(5, "b"))
    assert story.experience.checkpoint == e.Checkpointed(5, "b")


def test_buffers_taken_of_a_rollout_survive_its_end(story: Story) -> None:
    story.admit(size=1)
    story.finish(0)
    view = memoryview(story.experience.rollouts[0].ids)
    story(e.Dropped(0, "filtered"))
    assert bytes(view) == ints(0, 1, 2)


def middle_of_everything() -> Story:
    """Rollouts 0 waiting, 1 leased with 2 of 4 tokens, 2 leased and full, 3 sealed, 4 judged, 5
    buried; 6 and 7 of a ready group, 8 and 9 taken for step 2 at version 1."""
    story = Story()
    story(e.Published(1))
    story.admit(size=6, budget=4)
    story.admit(size=2)
    story.admit(size=2)
    story.lease(1, 2, 3, 4)
    story.extend(1, 2)
    story.extend(2, 4)
    story.extend(3, 1)
    story.extend(4, 1)
    story.seal(3, 4)
    story(e.Judged(4, Scored(0.0)), e.Buried(5, "attempts"))
    story.finish(6, 7, 8, 9, version=1)
    story(e.Taken(2, [8, 9]))
    return story


ONE = (ints(1), floats(-1))


def test_a_prompt_without_a_token_may_be_dropped_and_not_leased() -> None:
    """It is data's, and data may be anything."""
    experience = Experience()
    experience.apply(e.Published(0))
    experience.apply(e.Admitted(0, 0, 2, "train", 0, b"", 4))
    with pytest.raises(ImpossibleEvent, match="its prompt has no token"):
        experience.apply(e.Leased(0, "rollout-0", 1))
    experience.apply(e.Dropped(0, "prompt_empty"))
    assert experience.ledger.rollouts.discarded == {"prompt_empty": 2} and not experience.groups


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (e.Admitted(2, 10, 1, "train", 0, PROMPT, 4), "next are group 3 and rollout 10"),
        (e.Admitted(3, 9, 1, "train", 0, PROMPT, 4), "next are group 3 and rollout 10"),
        (e.Admitted(3, 10, 0, "train", 0, PROMPT, 4), "needs a rollout"),
        (e.Admitted(3, 10, 1, "train", 0, PROMPT, 0), "needs a rollout"),
        (e.Admitted(3, 10, 1, "train", -1, PROMPT, 4), "needs a rollout"),
        (e.Admitted(3, 10, 1, "train", 0, b"\0" * 6, 4), "prompt of 6 bytes"),
        (e.Leased(1, "rollout-0", 2), "is leased, not waiting"),
        (e.Leased(0, "rollout-0", 2), "leased 0 times"),
        (e.Leased(0, "", 1), "without a holder"),
        (e.Leased(99, "rollout-0", 1), "not live"),
        (e.Extended(1, 2, 1, 2, *ONE), "of attempt 2"),
        (e.Extended(1, 1, 1, 1, *ONE), "holds 2 tokens"),
        (e.Extended(1, 1, 1, 3, *ONE), "holds 2 tokens"),
        (e.Extended(1, 1, 1, 2, ints(1, 2, 3), floats(1, 2, 3)), "may have 4 tokens"),
        (e.Extended(1, 1, 1, 2, ints(1, 2), floats(1)), "parallel"),
        (e.Extended(1, 1, 1, 2, b"", b""), "not a positive number"),
        (e.Extended(1, 1, 1, 2, b"\0" * 5, b"\0" * 5), "not a positive number"),
        (e.Extended(1, 1, -1, 2, *ONE), "version -1"),
        (e.Extended(0, 0, 1, 0, *ONE), "is waiting, not leased"),
        (e.Extended(3, 1, 1, 1, *ONE), "is sealed, not leased"),
        (e.Extended(5, 0, 1, 0, *ONE), "not live"),
        (e.Sealed(1, 1, "interrupted"), "complete by"),
        (e.Sealed(1, 1, ""), "complete by"),
        (e.Sealed(1, 2, "stop"), "of attempt 2"),
        (e.Sealed(3, 1, "stop"), "is sealed, not leased"),
        (e.Requeued(2, 1, "lease expired"), "must be sealed"),
        (e.Requeued(1, 2, "lease expired"), "of attempt 2"),
        (e.Requeued(0, 0, "lease expired"), "is waiting, not leased"),
        (e.Buried(3, "attempts"), "is sealed"),
        (e.Buried(5, "attempts"), "not live"),
        (e.Buried(1, ""), "this one is empty"),
        (e.LateTokens(0), "not a positive number"),
        (e.Judged(1, Scored(1.0)), "is leased, not sealed"),
        (e.Judged(4, Scored(1.0)), "is judged, not sealed"),
        (e.Judged(3, Scored(float("nan"))), "only finite rewards are verdicts"),
        (e.Judged(3, Scored(float("inf"))), "only finite rewards are verdicts"),
        (e.Judged(3, Scored(1.0, [0.5, float("nan")])), "only finite rewards are verdicts"),
        (e.Judged(3, Scored(1.0, [0.5, 0.5])), "by 2 rewards, but others of its group were not"),
        (e.Taken(2, [3]), "is sealed, not judged"),
        (e.Taken(2, [6, 6]), "each once"),
        (e.Taken(2, [6, 7, 7]), "each once"),
        (e.Taken(2, []), "at least one"),
        (e.Taken(2, [8, 9]), "is taken, not judged"),
        (e.Taken(1, [6, 7]), "step 1 is over"),
        (e.Trained(6, 3, {}), "is judged, not taken"),
        (e.Trained(8, 2, {}), "not 2 trained"),
        (e.Trained(8, 4, {}), "not 4 trained"),
        (e.Trained(8, 4, {"stale": -1}), "negative"),
        (e.Trained(8, -1, {"stale": 4}), "negative"),
        (e.Trained(8, 2, {"": 1}), "this one is empty"),
        (e.Discarded(3, "filtered"), "is sealed, not judged"),
        (e.Discarded(8, "filtered"), "is taken, not judged"),
        (e.Discarded(6, ""), "this one is empty"),
        (e.Dropped(2, "stale"), "was taken"),
        (e.Dropped(3, "stale"), "not live"),
        (e.Dropped(0, ""), "this one is empty"),
        (e.Admitted(3, 10, 1, "train", 0, bytes(8), 4, None, 3), "does not wait for a restart"),
        (e.Published(0), "after version 1"),
        (e.Published(3), "still being trained"),
    ],
)
def test_what_cannot_have_happened_is_refused_and_changes_nothing(
    event: e.AnyEvent, says: str
) -> None:
    experience = middle_of_everything().experience
    before = copy.deepcopy(experience)
    with pytest.raises(ImpossibleEvent, match=says):
        experience.apply(event)
    assert experience == before
    assert experience.ledger.balances()


def test_a_token_newer_than_the_policy_of_the_step_is_refused(story: Story) -> None:
    story.admit(size=1)
    story.finish(0, version=1)
    with pytest.raises(ImpossibleEvent, match="only step 0 or a later one makes"):
        story(e.Taken(0, [0]))
    story(e.Taken(1, [0]))


def refuses(experience: Experience, event: e.AnyEvent, says: str) -> None:
    before = copy.deepcopy(experience)
    with pytest.raises(ImpossibleEvent, match=says):
        experience.apply(event)
    assert experience == before


def test_an_evaluation_leaves_whole_and_does_not_start_again(story: Story) -> None:
    story.admit(size=2, split="evaluation", version=0)
    story.finish(0, 1)
    refuses(story.experience, e.Discarded(0, "filtered"), "only its whole group")
    refuses(story.experience, e.Dropped(0, "stale", restart=True), "only a training prompt")
    story(e.Dropped(0, "evaluation"))


def test_only_what_a_step_has_is_kept_and_only_for_later_steps(story: Story) -> None:
    story.admit(size=1)
    story.admit(size=1)
    story.finish(0, 1)
    story(e.Taken(2, [0]))
    x = story.experience
    for group in (1, 99):
        refuses(x, e.StoredForReplay(group, 9), "was not taken")
    for until in (1, 2):
        refuses(x, e.StoredForReplay(0, until), "for the first time")
    refuses(x, e.Replayed(3, [0]), "not kept for replay")
    story(e.StoredForReplay(0, 3), e.Trained(0, 3, {}))
    refuses(x, e.Replayed(3, []), "replays no group")
    refuses(x, e.Replayed(4, [0]), "until step 3")
    refuses(x, e.Replayed(3, [0, 0]), "replayed already")
    story(e.Replayed(3, [0]))
    refuses(x, e.Replayed(3, [0]), "replayed already")


def test_a_cut_leaves_the_tokens_that_other_contexts_need(story: Story) -> None:
    story(
        e.Admitted(0, 0, 1, "train", 0, PROMPT, 9, played=True),
        e.Begun(0, "agents-0", 1),
        e.Called(0, 1, 1, None, PROMPT, 5, 4, 1.0),
        e.Leased(1, "rollout-0", 1),
        e.Extended(1, 1, 0, 0, ints(7, 8, 9), floats(-1, -1, -1)),
        e.Answered(1, 1, "stop"),
        e.Called(0, 1, 2, (1, 4), ints(3), 6, 4, 1.0),  # after the prompt and two of the three
    )
    refuses(story.experience, e.Cut(0, 1, 1, 1), "other contexts need 2")
    story(e.Cut(0, 1, 1, 2))
    assert story.experience.ledger.tokens.discarded == {"unused": 1}


def test_fold_of_nothing_is_the_beginning() -> None:
    assert fold([]) == Experience()
    assert Experience() != fold([e.LateTokens(1)])
    assert Experience() != 0
