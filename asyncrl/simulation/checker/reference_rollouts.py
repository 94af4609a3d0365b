"""Calls, rollouts, episodes and groups of the reference state, as the events tell them. Invariant:
they share no code with `asyncrl.experience`, and keep whole contexts where the product keeps what
is new of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored
from asyncrl.simulation import policy


class ReferenceCall:
    """A rollout of one turn, or a call of an agent's: it is leased. `lease` is the number of its
    last lease, `before` the tokens that it had then, `failures` its failed attempts, and `hops` how
    often it was taken back."""

    __slots__ = (
        *("attempt", "before", "behaviour", "failures", "group", "holder", "hops", "id", "ids"),
        *("lease", "versions"),
    )

    def __init__(self, id: int, group: ReferenceGroup) -> None:
        self.id, self.group = id, group
        self.ids, self.behaviour = bytearray(), bytearray()
        self.versions: list[int] = []
        self.attempt, self.holder = 0, ""
        self.lease = self.before = self.failures = self.hops = 0

    @property
    def waits(self) -> bool:
        """True if it may be leased."""
        raise NotImplementedError

    def extend(self, event: e.Extended) -> int:
        """Add the tokens that an engine has sampled, and return their number."""
        count = len(event.ids) // 4
        self.ids += event.ids
        self.behaviour += event.behaviour
        self.versions += [event.version] * count
        return count

    def shorten(self, tokens: int) -> int:
        """Forget all but the first `tokens` tokens, and return the number of the others."""
        forgotten = len(self.versions) - tokens
        del self.ids[4 * tokens :], self.behaviour[4 * tokens :], self.versions[tokens:]
        return forgotten

    def spans(self) -> list[tuple[int, int, int]]:
        """Runs of tokens of one version: the version, and [start, end)."""
        found: list[tuple[int, int, int]] = []
        for index, version in enumerate(self.versions):
            if found and found[-1][0] == version:
                found[-1] = version, found[-1][1], index + 1
            else:
                found.append((version, index, index + 1))
        return found


class ReferenceRollout(ReferenceCall):
    """One rollout. One that an agent plays is an `episode`, whose calls have the tokens until it is
    sealed; then they are the rollout's own, one turn after another. `given` are
    the tokens of each of its strands that the learner was given, by the value of their mask. `cut`:
    at its budget. A rule was asked about its first `looked` tokens last, and it goes on with this
    `chance`. A fork continues the `shared` ids; one that forks no more is `closed`."""

    __slots__ = (
        *("chance", "closed", "cut", "episode", "given", "looked", "member", "own", "sealed"),
        *("shared", "step", "verdict"),
    )

    def __init__(self, id: int, group: ReferenceGroup, member: int) -> None:
        super().__init__(id, group)
        self.member = member
        self.sealed = self.cut = False
        self.looked, self.chance, self.own = 0, 1.0, True
        self.shared, self.closed = b"", False
        self.verdict: Scored | NoVerdict | None = None
        self.step: int | None = None
        self.given: list[Counter[int]] = []
        self.episode: ReferenceEpisode | None = None
        if group.event.played:
            self.episode = ReferenceEpisode(self, group.event.max_new_tokens)

    @property
    def waits(self) -> bool:
        return self.episode is None and not (self.holder or self.sealed)

    @property
    def tokens(self) -> int:
        """Sampled tokens that are live."""
        played = self.episode is not None and not self.sealed
        return self.episode.tokens if played and self.episode else len(self.versions)

    @property
    def open(self) -> bool:
        """True if it may fork."""
        return self.group.leaves[self.id] > 1 and not self.closed

    @property
    def context(self) -> bytes:
        """The ids that it continues."""
        return self.group.event.prompt + self.shared

    @property
    def response(self) -> bytes:
        """The ids of its response, with those that it shares."""
        return self.shared + bytes(self.ids)

    @property
    def oldest(self) -> int:
        """Version of the oldest token; 0 where there is none."""
        return min(self.versions, default=0)

    def wrong(self) -> set[int]:
        """The places of the tokens that its verifier found wrong."""
        errors = self.verdict.errors if isinstance(self.verdict, Scored) else []
        return {place for start, end in errors for place in range(start, end)}


class ReferenceAgentCall(ReferenceCall):
    """A call of an agent's: its whole `context`, and the tokens that it may sample (`budget`).
    `used`: the present attempt has made it; `over`: its answer is complete, by `finish` unless it
    was cut; `buried`: it failed for good. `role` is that of the attempt which made it last. Its
    context begins with so many tokens of another call: `after`, which is `(-1, 0)` for none."""

    __slots__ = (
        *(
            "after",
            "budget",
            "buried",
            "context",
            "episode",
            "finish",
            "key",
            "over",
            "role",
            "temperature",
        ),
        "used",
    )

    def __init__(self, event: e.Called, context: bytes, episode: ReferenceEpisode) -> None:
        super().__init__(event.call, episode.rollout.group)
        self.episode, self.context = episode, context
        self.key, self.budget = event.key, event.max_new_tokens
        self.after = event.after or (-1, 0)
        self.temperature, self.role = event.temperature, event.role
        self.used, self.over, self.buried, self.finish = True, False, False, ""

    @property
    def waits(self) -> bool:
        wanted = self.used and self.episode.status == "played"
        return wanted and not (self.over or self.buried or self.holder)

    @property
    def path(self) -> bytes:
        """All that it was given and sampled."""
        return self.context + bytes(self.ids)

    @property
    def draws(self) -> int:
        """Identity of its draws."""
        return policy.draws(self.context, self.key, self.temperature)


@dataclass
class ReferenceEpisode:
    """An episode. `used` are the present attempt's calls, in the order in which it made them; of a
    sealed one, those that were kept. `rewards`, `keys` and `failed` are by call."""

    rollout: ReferenceRollout
    budget: int
    status: Literal["waiting", "played", "sealed"] = "waiting"
    attempt: int = 0
    failures: int = 0
    holder: str = ""
    calls: dict[int, ReferenceAgentCall] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)
    notes: dict[str, bytes] = field(default_factory=dict)
    rewards: dict[int | None, float] = field(default_factory=dict)
    keys: dict[int | None, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def id(self) -> int:
        return self.rollout.id

    @property
    def seed(self) -> int:
        """The number that the draws of its calls follow from."""
        return self.rollout.group.event.key + self.rollout.member

    @property
    def sampled(self) -> list[ReferenceAgentCall]:
        """The calls that have tokens, in the order in which they were made first."""
        return [call for call in self.calls.values() if call.versions and not call.buried]

    @property
    def turns(self) -> list[ReferenceAgentCall]:
        """The calls that this attempt has made and that sampled anything, in its order."""
        return [self.calls[id] for id in self.used if self.calls[id].versions]

    @property
    def tokens(self) -> int:
        """Sampled tokens of all calls."""
        return sum(len(call.versions) for call in self.sampled)

    @property
    def names(self) -> list[str]:
        """Keys of its turns; of one without a key, its role."""
        return [self.keys.get(call.id) or call.role for call in self.turns]

    def spent(self) -> int:
        """Sampled tokens of the calls that the present attempt has made."""
        return sum(len(call.versions) for call in self.turns)


class ReferenceGroup:
    """One group, as the events tell it. `place` is that of its prompt in the order of the data, or
    a negative number where the prompt of a stale group starts again. `steps` says which step has
    each member that was taken, `rewards` what each member got, the first judged first, whatever
    became of them, `solved` those that the verifier gave 1, `left` those that were not chosen.
    What was known of its prompt when it was admitted is its `prior`, a mean of rewards and its
    weight, and its `posterior`, 1 and those that solved it, 1 and those that did not.
    `longest` are the tokens of its longest right answer until then, and `admitted_version` the
    version that was committed last. Of members that a rule ended `pruned` are those of which
    nothing was kept, and `chances` has those with which the others went on. It `may_grow` until it
    has `most` members, or was told that it has all. `imports` foreign answers may still join it,
    and `foreign` are the members that have. Of each member `lines` has its ancestors, the root
    first, and itself, `begins` the place in the response where it begins, `leaves` those that it
    stands for, and `slots` the place of its draws."""

    __slots__ = (
        *("admitted_version", "begins", "chances", "event", "foreign", "imports", "leaves", "left"),
        *("lines", "longest", "members", "most", "ordinal"),
        *("place", "posterior", "prior", "pruned", "rewards", "slots", "solved", "steps"),
    )

    def __init__(
        self,
        event: e.Admitted,
        ordinal: int,
        place: int,
        prior: tuple[float, float],
        posterior: tuple[float, float],
        admitted_version: int | None,
    ) -> None:
        self.event, self.ordinal, self.place, self.prior = event, ordinal, place, prior
        self.posterior, self.admitted_version = posterior, admitted_version
        self.members = [*range(event.first, event.first + event.size)]
        self.most, self.imports = event.most, event.imports
        self.foreign: set[int] = set()
        self.steps: dict[int, int] = {}
        self.rewards: dict[int, float] = {}
        self.solved: set[int] = set()
        self.left: set[int] = set()
        self.longest, self.pruned = 0, 0
        self.chances: dict[int, float] = {}
        self.lines = {id: [id] for id in self.members}
        self.begins = dict.fromkeys(self.members, 0)
        self.leaves = dict.fromkeys(self.members, event.leaves)
        self.slots = {id: (id - event.first) * event.leaves for id in self.members}

    @property
    def may_grow(self) -> bool:
        return len(self.members) < self.most

    @property
    def own_rewards(self) -> list[float]:
        """The rewards of the members that the run has sampled, by number."""
        return [self.rewards[id] for id in sorted(self.rewards) if id not in self.foreign]

    @property
    def roots(self) -> list[int]:
        """The members that are no forks."""
        return [id for id in self.members if len(self.lines[id]) == 1]

    @property
    def compared(self) -> dict[int, float]:
        """The rewards of the members that are compared: those that were not left out, by number; of
        trees by the place of their draws."""
        order = sorted(self.rewards, key=lambda id: (self.slots[id], id))
        return {id: self.rewards[id] for id in order if id not in self.left}

    def others(self, id: int) -> list[float]:
        """The rewards of all members but one, the first judged first."""
        return [reward for member, reward in self.rewards.items() if member != id]

    def baseline(self, id: int, k: int, visits: float) -> float:
        """The mean of the first `k` judged among the others, drawn to the prior, whose weight is
        `visits` at most."""
        first, (mean, weight) = self.others(id)[:k], self.prior
        weight = min(visits, weight)
        return (sum(first) + weight * mean) / (k + weight)
