"""Things that the attempts of one agents actor open outside: containers, remote sandboxes,
directories.

    open → wait for a start → note → (the agent opens it, and ends it) → the attempt is over → end
    what it left

Invariant: what an attempt opened is ended when the attempt is, however that ends, or keeps its note
for the next life (`asyncrl.sandbox.opened`). As many attempts open something at a time as may start
(`StartLimit`), whatever they are: also after a resume, when all begin at once. One that opens has
started at its next call of the model, when it says that the thing is gone, at its end, and after
`start_limit.LONGEST_S`: a sandbox that never starts is in nobody's way for longer.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import trio

from asyncrl.actors.agent_pool import AgentClock, Told
from asyncrl.actors.agent_starts import AgentStart, AgentStarts
from asyncrl.agents.gateway.played_session import ended as over
from asyncrl.escape import escaped
from asyncrl.sandbox.enders import EndedNote, Enders
from asyncrl.sandbox.opened import LeftNote, NoteError, Opened, file_of, note, notes_of

ENDING = 4
"""Attempts whose things are ended at a time."""
THINGS = 64
"""Things that an attempt may have opened at a time."""


class AgentOpenings:
    """The things of the attempts of the agents actor `index`. `starts` must run beside them."""

    def __init__(
        self,
        index: int,
        enders: Enders,
        starts: AgentStarts,
        told: Told,
    ) -> None:
        self.enders, self.starts = enders, starts
        self.used = False
        """True once an attempt has opened something."""
        self._actor, self._told = f"agents-{index}", told
        self._attempts: dict[str, AttemptOpenings] = {}
        self._ending = trio.CapacityLimiter(ENDING)

    async def end_predecessors(self) -> None:
        """End what the attempts of an actor of this index left that was killed."""
        await self._end_of(self._actor)

    def begin(self, session: str, clock: AgentClock) -> AttemptOpenings:
        """Begin an attempt, which has opened nothing yet."""
        begun = AttemptOpenings(self, f"{self._actor}.{session}", clock)
        self._attempts[session] = begun
        return begun

    async def open(self, session: str, opened: Opened) -> str:
        """Note what an attempt is going to open, once it may: then it must open it. Returns its
        name, or its path if it is a directory. Raises GatewayError if the attempt is over,
        NoteError for what this run could not end, and OSError."""
        if (attempt := self._attempts.get(session)) is None:
            raise over(session)
        self.used = True
        return await attempt.open(opened)

    async def close(self, session: str, opened: Opened) -> str:
        """End a thing that an attempt opened, which may be gone. Returns why it could not be ended,
        "" if it is gone. Raises GatewayError if the attempt is over, and NoteError if it has not
        opened it."""
        if (attempt := self._attempts.get(session)) is None:
            raise over(session)
        return await attempt.close(opened)

    async def end(self, session: str) -> None:
        """End an attempt, and what it left. A cancellation waits for that."""
        attempt = self._attempts.pop(session)
        with trio.CancelScope(shield=True):
            await attempt.end()
            if notes_of(self.enders.run, attempt.owner).exists():
                await self._end_of(attempt.owner)

    async def end_note(self, note: LeftNote) -> EndedNote:
        """End the thing of a note, and tell how that went."""
        done = await trio.to_thread.run_sync(self.enders.end_known, note, limiter=self._ending)
        tell([done], self._told)
        return done

    async def _end_of(self, owner: str) -> None:
        done = await trio.to_thread.run_sync(self.enders.end_left, owner, limiter=self._ending)
        tell(done, self._told)


class AttemptOpenings:
    """The things of one attempt, whose notes are those of `owner`."""

    def __init__(self, all_of: AgentOpenings, owner: str, clock: AgentClock) -> None:
        self.owner = owner
        self._all, self._clock = all_of, clock
        self._permits = AsyncExitStack()
        self._starts: list[AgentStart] = []
        self._things: set[Opened] = set()
        self._asking: set[trio.CancelScope] = set()
        self._quiet = trio.Event()
        self._over = False

    @property
    def folder(self) -> Path:
        """The folder of its notes."""
        return notes_of(self._all.enders.run, self.owner)

    def called(self) -> None:
        """Note that the attempt calls the model: what it has opened, has started."""
        for start in self._starts:
            start.called()
        self._starts.clear()

    async def open(self, opened: Opened) -> str:
        self._all.enders.refuse(opened)
        if len(self._things) >= THINGS:
            raise OSError(f"an attempt may have {THINGS} things open at a time")
        with trio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                with self._clock.paused():
                    start = await self._permits.enter_async_context(
                        self._all.starts.start(self.owner)
                    )
                self._starts.append(start)
                self._things.add(opened)
                await trio.to_thread.run_sync(note, self._all.enders.run, opened, self.owner)
                return await trio.to_thread.run_sync(self._all.enders.made, opened)
            finally:
                self._asking.discard(scope)
                if self._over and not self._asking:
                    self._quiet.set()
        raise over(self.owner.partition(".")[2])

    async def close(self, opened: Opened) -> str:
        if opened not in self._things:
            raise NoteError(f"this attempt has not opened {opened}")
        self.called()
        note = LeftNote(self.owner, self.folder / file_of(opened), opened)
        done = await self._all.end_note(note)
        if not done.wrong:
            self._things.discard(opened)
        return done.wrong

    async def end(self) -> None:
        """Open nothing more: who waits for a start gets none, and a note that is being written is
        there when this returns."""
        self._over = True
        for scope in self._asking:
            scope.cancel()
        if self._asking:
            await self._quiet.wait()
        await self._permits.aclose()


def tell(done: list[EndedNote], told: Told) -> None:
    """Tell of what could not be ended, and count what was."""
    for one in done:
        if one.wrong:
            told("agents_left", f"what an attempt left could not be ended: {escaped(str(one))}")
        else:
            told("agents_left_ended", "")
