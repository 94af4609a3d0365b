"""The sandboxes that agents open, as a row of `check`."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.sandbox_hosts import NO_PROVIDER
from asyncrl.config.schema import SandboxConfig


def sandbox_rows(sandbox: SandboxConfig) -> Iterator[tuple[str, str, str]]:
    """The row; none where agents open no sandboxes."""
    if sandbox.kind == NO_PROVIDER:
        return
    own = f", or {sandbox.image}" if sandbox.image else ""
    yield (
        "sandboxes",
        sandbox.kind,
        f"of agents; image: a row's {sandbox.image_key!r}{own}; "
        f"hosts: {', '.join(sandbox.hosts) or 'none'}; ≤ {sandbox.lasts_s:g} s each",
    )
