"""The checker of a world of episodes: each event and each message is judged against the reference.
Invariant: it believes the messages, the events, and what engines with those weights really sample.

Here a frame is judged when the coordinator decides on it, so more is known of it than
`episode_witness.py` asks for.
"""

from __future__ import annotations

from collections import Counter

from asyncrl.actors.coordinator.playing import PlayingLimits
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import Chunks, Message, Reply
from asyncrl.simulation.checker.call_checks import check_lease, check_tokens
from asyncrl.simulation.checker.episode_witness import EpisodeWitness
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall
from asyncrl.simulation.checker.reference_state import ReferenceState
from asyncrl.simulation.checker.strand_checks import check_contexts
from asyncrl.simulation.observer import WorldObserver

TEMPERATURE = 1.0


class EpisodeChecker(WorldObserver):
    """Watches one run of episodes. `weights` are those of each version; `steady` agents do the same
    in each attempt."""

    def __init__(
        self, limits: PlayingLimits, concurrency: int, weights: dict[int, int], *, steady: bool
    ) -> None:
        super().__init__()
        self.weights = weights
        self.events: list[e.AnyEvent] = []
        self.reference = ReferenceState()
        self.episodes = EpisodeWitness(
            self, limits, concurrency, lambda group: TEMPERATURE, steady=steady
        )
        self._delivered = 0

    # -------------------------------------------------------------------------------------- a life

    def crashed(self, durable: int) -> None:
        """Of all events only the first `durable` are left, and all others start again."""
        del self.events[durable:]
        self.reference = ReferenceState()
        for event in self.events:
            self.reference.apply(event)
        self.episodes.begin()
        self._delivered = self.reference.tokens

    def look(self, experience: Experience) -> None:
        """Compare the product's state with the reference, between two messages."""
        mine, tokens = self.reference, experience.ledger.tokens
        due = mine.tokens, mine.tokens_trained, mine.tokens_live, +mine.tokens_discarded
        written = tokens.total, tokens.trained, tokens.live, Counter(tokens.discarded)
        self.hold("ledger", due == written, "tokens: {}, and the ledger says {}", due, written)
        self.hold("ledger", experience.ledger.balances(), "the ledger does not balance")
        self.hold(
            "tokens are booked",
            self._delivered == mine.tokens,
            "{} tokens were delivered, and {} booked",
            self._delivered,
            mine.tokens,
        )
        for episode in mine.episodes:
            check_contexts(self, episode, experience)

    def over(self, experience: Experience) -> None:
        """Nothing is live any more."""
        self.hold(
            "liveness",
            not self.reference.rollouts and not experience.calls,
            "rollouts {} and calls {} are live at the end",
            list(self.reference.rollouts),
            list(experience.calls),
        )

    # ------------------------------------------------------------------------------------ messages

    def on_handling(self, sender: str, message: Message, buffers: tuple[bytes, ...]) -> None:
        """The coordinator is about to handle this."""
        self.episodes.handling(sender, message, buffers)
        if isinstance(message, Chunks):
            self._delivered += sum(head.count for head in message.heads)

    def on_sent(self, start: str, message: Message, buffers: tuple[bytes, ...]) -> None:
        """The coordinator sends this to the actor `start`."""
        if isinstance(message, Reply):
            self._replied(start, message)
        self.episodes.told(start, message, buffers)

    def _replied(self, start: str, message: Reply) -> None:
        episode = self.reference.episode(message.rollout)
        if episode is None or (episode.attempt, episode.holder) != (message.attempt, start):
            return self.violated("answers", f"{message} is of an attempt that is over")
        call = self.episodes.call(message)
        if message.refused:
            buried = call is None or episode.calls[call].buried
            self.hold("answers", buried, "{}, and call {} may be answered", message, call)
        elif message.finish and call is not None:
            spent = episode.spent() >= episode.budget
            due = episode.calls[call].finish or ("length" if spent else "stop")
            self.hold(
                "answers",
                episode.calls[call].over and message.finish == due,
                "{} ends an answer that ends by {}",
                message,
                due,
            )
        return None

    # -------------------------------------------------------------------------------------- events

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        self.events.append(event)
        if self.violation is None:
            self._check(event)
        if self.violation is None:
            self.reference.apply(event)

    def _check(self, event: e.AnyEvent) -> None:
        match event:
            case e.Leased() | e.Extended():
                self._check_call(event)
            case e.Buried() if event.rollout in self.reference.agents.calls:
                pass
            case _:
                self.episodes.check(event)

    def _check_call(self, event: e.Leased | e.Extended) -> None:
        call = self.reference.call(event.rollout)
        if not isinstance(call, ReferenceAgentCall):
            return self.violated("leases", f"{event} is of no live call")
        if isinstance(event, e.Leased):
            check_lease(self, call, event)
        else:
            check_tokens(self, call, event, call.draws, self.weights[event.version])
            self.episodes.extended(event)
        return None
