"""Ends of an attempt at an episode, as its agent's process reports them.

An agent that raises, or whose value is not a reward, has failed, with a kind and a sentence. A
failure is never a reward of zero.
"""

from __future__ import annotations

import asyncio
import sysconfig
import traceback
from pathlib import Path
from typing import Literal

import msgspec

from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.agent_program import ProgramFailed
from asyncrl.agents.agent_rewards import WrongKind, WrongReward, as_outcome
from asyncrl.agents.closing import Closing, ToldToEnd
from asyncrl.agents.load_agent import Agent
from asyncrl.escape import escaped
from asyncrl.sandbox.boxes.box_errors import BoxError, ImageError

CHARACTERS = 400
"""Characters of a failure's sentence."""

OTHERS = (
    str(Path(__file__).parent / ""),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)
"""Folders whose code is not the user's."""

FailureKind = (
    Literal["raised", "exit", "timeout", "crashed", "given up", "two rewards", "no facts"]
    | Literal["image", "sandbox"]
    | Literal["left", "no seat", "game given up", "no outcome"]
    | WrongKind
)
"""`raised`: the agent raised; `exit`: its program ended with an error; `timeout`: its
clock ran out; `crashed`: its process died; `given up`: it reported so; `two rewards`: it posted one
and returned one; `no facts`: its prompt could not be given to it; in a game, `left`: the
host's attempt is over; `no seat`: another run did not take part in time; `game given up`: another
run has given the game up; `no outcome`: the game did not say each policy's reward. `image`: an
image is not there and cannot be pulled; `sandbox`: a sandbox did not start or answer; the others:
its value is not a reward."""


class AgentEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The agent ended by itself, with the episode's reward, or several by name; None: the task's
    verifier judges its last reply."""

    reward: float | dict[str, float] | None


class AgentFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The agent did not end well; there is no reward. `text` is one printable line."""

    kind: FailureKind
    text: str


AgentEnd = AgentEnded | AgentFailed


class AgentClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The attempt has closed what it had to (`over`), or is closing it; `wrong` says what went
    wrong if nothing more is said, "" if nothing did."""

    wrong: str
    over: bool


def failed(kind: FailureKind, text: str) -> AgentFailed:
    """A failure, whose text is escaped and cut."""
    return AgentFailed(kind, escaped(" ".join(text.split()), CHARACTERS))


def no_facts(error: Exception) -> AgentFailed:
    """The failure where the prompt, or its entry in the task, cannot be given to an agent."""
    return failed("no facts", f"{type(error).__name__}: {error}")


async def played(agent: Agent, facts: EpisodeFacts, closing: Closing) -> AgentEnd:
    """Play an episode, and return how it ended, whatever the agent raises. The caller closes
    what is in `closing` then."""
    try:
        return AgentEnded(as_outcome(await agent(facts, closing)))
    except WrongReward as error:
        return failed(error.kind, str(error))
    except ProgramFailed as error:
        return failed("exit", str(error))
    except BoxError as error:
        return failed("image" if isinstance(error, ImageError) else "sandbox", str(error))
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, ToldToEnd):
        raise
    except BaseException as error:  # noqa: BLE001 a user's code may raise SystemExit too
        return raised(error)


def raised(error: BaseException) -> AgentFailed:
    """The failure of an agent that raised: the error, and the line of its code nearest to it."""
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(OTHERS)]
    if own:
        text = f"{text[: CHARACTERS - 100]} (line {own[-1].lineno} of {own[-1].filename[-60:]})"
    return failed("raised", text)
