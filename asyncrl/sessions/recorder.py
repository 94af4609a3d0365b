"""The recorder of agents' sessions. Invariant: each token sampled for a session is in exactly one
`FinishedSession`, whatever ended the session.

A session is all calls of one agent from the first one to its reward. It opens with its first call.
It ends by a reward, by giving up, by being idle for `idle_s`, or with the gateway. Calls that still
run then are waited for, and are part of it. The names of ended sessions are remembered (as many as
sessions may be open), so that a late call is told why it is refused. The caller gives the time, in
seconds that only grow.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from asyncrl.experience.call_tree import ID, CallTree, Sampled, TreePosition
from asyncrl.sessions.finished import End, FinishedSession
from asyncrl.sessions.texts import Texts


class SessionRefused(Exception):
    """The recorder does not take this, and is as it was before; the sentence says why and what to
    do."""


class UnknownSession(SessionRefused):
    """No call was made under this name, or it was long ago."""


class SessionEnded(SessionRefused):
    """The session has ended; the sentence says how."""


class SessionBusy(SessionRefused):
    """The session cannot be judged as it stands, or takes no call because it is being judged."""


class SessionFull(SessionRefused):
    """The session has as many calls or tokens as it may have."""


class TooManySessions(SessionRefused):
    """As many sessions are open, or ended and not fetched, as may be."""


class Bounds(msgspec.Struct, frozen=True):
    """Limits: `sessions` that are open or not fetched yet; `calls` and `tokens` (given and sampled,
    shared ones once) of one session; `sequence_tokens` of its sequences together (shared ones once
    for each), and so about nine bytes each; `all_tokens` the same of all sessions that are open or
    not fetched; `idle_s`, the seconds that a session may be idle."""

    sessions: int = 1024
    calls: int = 256
    tokens: int = 1 << 20
    sequence_tokens: int = 1 << 22
    all_tokens: int = 1 << 24
    idle_s: float = 600.0


class _Session:
    """An open session: its tree, its texts and its counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree, self.texts = CallTree(), Texts()
        self.calls = self.running = self.reserved = self.sampled = self.unused = 0
        self.longest = 0
        """Tokens that its sequences may have when what runs has ended: each call may begin one."""
        self.reply: Sampled | None = None
        """The last reply that came to its end."""
        self.judged = False
        self.ending: tuple[End, float | None, int | None] | None = None


class RunningCall(msgspec.Struct, eq=False):
    """A call that runs. It holds room for `tokens` until `finish`, and for a sequence of
    `longest`."""

    session: _Session
    context: bytes
    tokens: int
    longest: int


class Recorder:
    """All sessions of one gateway. `finished` are the ended ones, the oldest first, until somebody
    takes them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._open: dict[str, _Session] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        self._ended: OrderedDict[str, End] = OrderedDict()
        self.finished: deque[FinishedSession] = deque()

    @property
    def open(self) -> int:
        """The number of sessions that have begun and are not finished."""
        return len(self._open)

    @property
    def _tokens(self) -> int:
        """Tokens of all sequences that are open or not fetched."""
        return sum(session.longest for session in self._open.values()) + sum(
            len(leaf.mask) for finished in self.finished for leaf in finished.leaves
        )

    def is_open(self, name: str) -> bool:
        """True if the session has begun and is not finished."""
        return name in self._open

    @property
    def due(self) -> float | None:
        """The time at which the next session expires, if nothing is heard of it; None where nothing
        is idle."""
        return next(iter(self._idle.values())) + self._bounds.idle_s if self._idle else None

    def known(self, name: str, text: bytes) -> tuple[int, bytes]:
        """The longest start of a context's text (UTF-8) that the session's model has seen or said:
        its length in bytes, and its `int32` ids."""
        session = self._open.get(name)
        found = session.texts.longest(text) if session else None
        if session is None or found is None:
            return 0, b""
        return found[0], session.tree.ids(found[1])

    def begin(self, name: str, context: bytes, max_new_tokens: int) -> RunningCall:
        """A call of at most `max_new_tokens` after `context` (`int32` ids, at least one); it opens
        the session where there is none.

        Raises SessionEnded, SessionFull, SessionBusy or TooManySessions, and ValueError for a
        context that is not whole ids.
        """
        if not context or len(context) % ID:
            raise ValueError(
                f"a call's context of {len(context)} bytes is not a positive number of int32"
            )
        session = self._session(name)
        if session.judged:
            raise SessionBusy(f"session {name} is being judged; wait for its reward, which ends it")
        bounds = self._bounds
        tokens = len(context) // ID - session.tree.known(context) + max_new_tokens
        if session.calls >= bounds.calls:
            raise SessionFull(
                f"session {name} has had {session.calls} calls, which is as many as it may; give "
                "its reward, or start another"
            )
        longest = len(context) // ID + max_new_tokens
        if session.longest + longest > bounds.sequence_tokens:
            raise SessionFull(
                f"the sequences of session {name} have {session.longest} tokens, and {longest} "
                f"more would exceed {bounds.sequence_tokens}; give its reward"
            )
        if self._tokens + longest > bounds.all_tokens:
            raise TooManySessions(
                f"the sessions that are open or not fetched have {self._tokens} tokens, and "
                f"{longest} more would exceed {bounds.all_tokens}; try again later"
            )
        held = session.tree.tokens + session.reserved
        if held + tokens > bounds.tokens:
            raise SessionFull(
                f"session {name} holds {held} tokens, and {tokens} more would exceed "
                f"{bounds.tokens}; lower max_tokens, or give its reward"
            )
        self._open[name] = session
        self._idle.pop(name, None)
        session.calls += 1
        session.running += 1
        session.reserved += tokens
        session.longest += longest
        return RunningCall(session, context, tokens, longest)

    def finish(
        self,
        call: RunningCall,
        sampled: Sampled,
        now: float,
        texts: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """The call has ended, and this is what it sampled; it may be nothing. `texts` are texts
        that later contexts may start with: pairs of a text (UTF-8) and its number of tokens, from
        the start of the context on. Raises ValueError as `CallTree.add` does, with nothing
        changed."""
        session = call.session
        before = session.tree.sequence_tokens
        place = session.tree.add(call.context, sampled)
        session.longest += session.tree.sequence_tokens - before - call.longest
        for text, tokens in texts:
            session.texts.add(text, TreePosition(place.strand, tokens - place.strand.base))
        if sampled.finish in ("stop", "length"):
            session.reply = sampled
        session.sampled += sampled.tokens
        session.unused += sampled.unused
        session.running -= 1
        session.reserved -= call.tokens
        if session.ending is not None:
            self._finish(session)
        elif not session.running:
            self._idle[session.name] = now

    def judge(self, name: str) -> Sampled:
        """The last reply that came to its end, to be judged: from now on until `end` or `unjudged`
        the session takes no calls, and is not idle. Raises UnknownSession,
        SessionEnded, and SessionBusy where there is no such reply, or a call runs."""
        session = self._going(name)
        if session.running or session.judged:
            raise SessionBusy(
                f"session {name} "
                f"{'is being judged' if session.judged else 'has a running call'}; ask again "
                "when that has ended"
            )
        if session.reply is None:
            raise SessionBusy(
                f"session {name} has no reply that came to its end; make a call, give its "
                "reward, or give up"
            )
        session.judged = True
        self._idle.pop(name)
        return session.reply

    def unjudged(self, name: str, now: float) -> None:
        """There is no verdict: the session goes on, where it has not ended meanwhile."""
        session = self._open.get(name)
        if session is not None and session.judged:
            session.judged = False
            self._idle[name] = now

    def end(
        self, name: str, end: End, reward: float | None = None, prompt_index: int | None = None
    ) -> None:
        """The session takes no more calls, and is finished as soon as none runs. `reward` (finite)
        is given where `end` is `rewarded`; `prompt_index` is the prompt of the run's task that it
        was about.

        Raises UnknownSession, SessionEnded, and ValueError for a reward that is not finite, or
        missing, or too much.
        """
        if (end == "rewarded") != (reward is not None) or not math.isfinite(reward or 0.0):
            raise ValueError(
                f"a reward is a finite number and ends a session as rewarded; {end} came with "
                f"{reward}"
            )
        session = self._going(name)
        session.ending = end, reward, prompt_index
        self._finish(session)

    def expire(self, now: float) -> None:
        """End the sessions that have been idle for too long."""
        while (due := self.due) is not None and due <= now:
            self.end(next(iter(self._idle)), "expired")

    def drain(self) -> None:
        """End every open session; those with running calls when these have ended."""
        for session in [session for session in self._open.values() if session.ending is None]:
            self.end(session.name, "drained")

    def refuse_ended(self, name: str) -> None:
        """Raise SessionEnded if the session has ended."""
        session = self._open.get(name)
        if name in self._ended or (session is not None and session.ending is not None):
            raise SessionEnded(self._why(name))

    def _going(self, name: str) -> _Session:
        """A session that has begun and not ended. Raises UnknownSession and SessionEnded."""
        session = self._open.get(name)
        if session is None and name not in self._ended:
            raise UnknownSession(
                f"no call was made in session {name}; a session opens with its first call"
            )
        if session is None or session.ending is not None:
            raise SessionEnded(self._why(name))
        return session

    def _session(self, name: str) -> _Session:
        self.refuse_ended(name)
        session = self._open.get(name)
        if session is None and len(self._open) + len(self.finished) >= self._bounds.sessions:
            raise TooManySessions(
                f"{self._bounds.sessions} sessions are open or not fetched, which is as many as "
                "may be; try again later"
            )
        return session or _Session(name)

    def _why(self, name: str) -> str:
        session = self._open.get(name)
        end = (
            session.ending[0]
            if session is not None and session.ending is not None
            else self._ended[name]
        )
        how = (
            f"it was idle for {self._bounds.idle_s:g} s"
            if end == "expired"
            else f"it was {end.replace('_', ' ')}"
        )
        return f"session {name} has ended: {how}; use another name for another session"

    def _finish(self, session: _Session) -> None:
        if session.running or session.ending is None:
            return
        end, reward, prompt_index = session.ending
        self._idle.pop(session.name, None)
        del self._open[session.name]
        self._ended[session.name] = end
        if len(self._ended) > self._bounds.sessions:
            self._ended.popitem(last=False)
        tree = session.tree
        self.finished.append(
            FinishedSession(
                session=session.name,
                end=end,
                reward=reward,
                prompt_index=prompt_index,
                calls=session.calls,
                sampled=session.sampled,
                unused=session.unused,
                meetings=dict(tree.meetings),
                leaves=tuple(tree.leaves()),
            )
        )
