"""Roles of calls: an agent that plans, acts and sums up says which of these a call is."""

from __future__ import annotations

from typing import Any, TypeVar

ROLE_HEADER = "x-asyncrl-role"
"""Header that names the role of a call, where its `metadata` do not."""

_Client = TypeVar("_Client", bound=Any)


def as_role(client: _Client, role: str) -> _Client:
    """The same client of OpenAI's or Anthropic's, whose calls are in this role (1 to 64 letters,
    digits, dots, dashes and underscores).

        plan = await as_role(client, "planner").chat.completions.create(...)
    """
    return client.with_options(default_headers={ROLE_HEADER: role})  # type: ignore[no-any-return]
