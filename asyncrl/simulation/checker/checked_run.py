"""One run as its checker knows it, life after life: the reference, and what was seen beside the
events. Checks read it; `Checker` fills it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

from asyncrl.actors.coordinator.attempts import PlayingLimits
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import Split, Verdict
from asyncrl.simulation import policy
from asyncrl.simulation.checker.episode_witness import EpisodeWitness
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceAgentCall,
    ReferenceCall,
    ReferenceRollout,
)
from asyncrl.simulation.checker.reference_rules import ReferenceRules
from asyncrl.simulation.checker.reference_state import ReferenceState
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.policy import Rewards


class CheckedRun(ReferenceRules, WorldObserver):
    """Knowledge of a run.

    Of all lives: `events`, as they became durable; `lineage`, the weights of each version that
    training stands on; `trained_by`, the rollouts whose tokens are in the weights of a version;
    `handed`, by step, the rollouts given to the learner, and the calls of each that were not;
    `choices`, by group, the members among which was chosen, and those that were;
    `imports`, by group, what was known of it when foreign answers joined it, and these;
    `undone_weights`, those of versions that a crash undid; `written`, the versions of which a
    checkpoint was written; `garbled`, the bad chunks that starts of actors sent; `refused`, the
    verdicts that the plan withheld.

    Of the present life: `reference`, the state by the events; `shadow`, a fold of the events by the
    product's own code; `store`, the product's state; `here`, the versions published; `prescribed`,
    what a crash undid and has to be taken again, by step; `version`, from which training started;
    `heard_version`, the last that the coordinator has heard of;
    `closed`, the last version that was published before; `bound`, the units that may be live.
    """

    store: EventStore
    shadow: Experience

    prompts: PromptSource

    def __init__(self, seed: int, config: Config, rewards: Rewards, *, steady: bool = True) -> None:
        """`steady` agents, where there are any, do the same in each attempt."""
        super().__init__()
        self.seed, self.config, self.rewards = seed, config, rewards
        self.clock: Callable[[], float] = lambda: 0.0
        self.events: list[e.AnyEvent] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.lost_tail = 0  # events that were not durable when a coordinator died
        self.lineage = {0: policy.initial(seed)}
        self.undone_weights: dict[int, int] = {}
        self.trained_by: dict[int, set[int]] = {}
        self.handed: dict[int, dict[int, list[ReferenceAgentCall]]] = {}
        self.choices: dict[int, tuple[list[tuple[int, float, bytes]], set[int]]] = {}
        self.imports: dict[int, tuple[tuple[object, ...], Counter[str]]] = {}
        self.written: set[int] = set()
        self.garbled = Counter[str]()
        self.refused = 0
        self.reference = ReferenceState()
        limits = PlayingLimits(
            max_calls=config.agent.max_calls,
            attempts=config.agent.attempts,
            context_tokens=config.engine.context_tokens,
            ends_rewarded=config.train.credit == "below",
        )
        self.episodes = EpisodeWitness(
            self, limits, config.agent.concurrency, self.temperature, steady=steady
        )
        self.here: set[int] = set()
        self.prescribed: list[tuple[int, list[int]]] = []
        self.version = self.heard_version = 0
        self.closed = 0
        self.bound = 0
        self.closable: dict[int, float] = {}  # by step: before then it was not closed
        self.delivered = 0  # tokens that the coordinator received
        self.excused = False  # what was delivered holds garbage, which is nobody's token
        self.answered = list[tuple[int, Verdict]]()  # the last ones delivered, in this step
        self._ended: list[tuple[str, int, str]] = []  # leases: holder, number, and the reason
        self._ended_at = 0.0

    def weights_of(self, split: Split, version: int) -> int | None:
        """The weights that sample for `split` under a version; None where it was never made."""
        weights = self.lineage.get(version)
        averaged = split == "evaluation" and self.config.evaluation.weights == "ema"
        return policy.average(weights) if averaged and weights is not None else weights

    def lease_ended(self, holder: str, number: int, reason: str) -> None:
        """Remember the end of a lease, for as long as the time is the same."""
        if self._ended_at != self.clock():
            self._ended, self._ended_at = [], self.clock()
        self._ended.append((holder, number, reason))

    def ended_now(self, holder: str, before: int, reason: str) -> tuple[int, int]:
        """Number of leases of a holder, given before the lease `before`, that have ended at this
        very moment: for that reason, and for any."""
        if self._ended_at != self.clock():
            return 0, 0
        ended = [why for whose, number, why in self._ended if whose == holder and number < before]
        return ended.count(reason), len(ended)


def live_call(run: CheckedRun, id: int, event: e.AnyEvent) -> ReferenceCall:
    """The call, or rollout of one turn, that an event names. Raises Violation where it is not
    live."""
    call = run.reference.call(id)
    run.hold(
        "once",
        call is not None,
        "{} is of a rollout that was {}",
        event,
        run.reference.ended.get(id, "never admitted"),
    )
    if call is None:
        raise run.violation or AssertionError
    return call


def live_rollout(run: CheckedRun, id: int, event: e.AnyEvent) -> ReferenceRollout:
    """The rollout that an event names. Raises Violation where it is not live."""
    seen = run.reference.rollouts.get(id)
    run.hold(
        "once",
        seen is not None,
        "{} is of a rollout that was {}",
        event,
        run.reference.ended.get(id, "never admitted"),
    )
    if seen is None:
        raise run.violation or AssertionError
    return seen
