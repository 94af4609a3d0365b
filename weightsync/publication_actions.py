"""Actions that a publication asks of the shell around it."""

from __future__ import annotations

import msgspec

from asyncrl.messages import Abort, Commit, Prepare, Publish, Quiesce, Resend, Transfer


class Action(msgspec.Struct, frozen=True):
    """An order to the shell."""


class ToTrainer(Action, frozen=True):
    """Send this to the trainer."""

    message: Publish | Transfer | Abort | Resend


class ToMember(Action, frozen=True):
    """Send this to a rollout actor."""

    member: int
    message: Prepare | Quiesce | Commit | Abort | Resend


class Decided(Action, frozen=True):
    """The commit is decided and stands from here on: journal it before carrying out what
    follows."""

    version: int


class Fence(Action, frozen=True):
    """This member is out: no more routing, its process ended and replaced. Comes at most once for
    each member."""

    member: int
    reason: str


class FenceTrainer(Action, frozen=True):
    """The trainer does not answer, which ends the run."""

    reason: str


class Done(Action, frozen=True):
    """Every member still in decodes with `version`. Nothing follows."""

    version: int


class Failed(Action, frozen=True):
    """Nothing was committed, and all members have released the transfer. It is the last action.
    Members that got `Resend` stay paused until all weights are sent to them again; the others serve
    their old version."""

    reason: str
