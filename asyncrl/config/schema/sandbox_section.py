"""Settings of the sandboxes that agents open: containers, and sandboxes of a provider.

Invariant: no setting holds a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.plugins import Named, file_names
from asyncrl.config.sandbox_hosts import ANY_HOST, NO_PROVIDER, is_host
from asyncrl.config.schema.agent_section import PLAYED_ELSEWHERE
from asyncrl.config.schema.section import EVERY, PATH, Contradictions, Section
from asyncrl.messages.address import TcpAddress, url_parts

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class SandboxConfig(Section, frozen=True):
    """Sandboxes that agents open by `episode.sandbox()` (docs/sandboxes.md)."""

    resumable = EVERY

    kind: Annotated[
        str,
        Named("sandbox", (NO_PROVIDER, *file_names("sandbox/boxes/providers"))),
        Meta(description="where agents' sandboxes are; none: they open none"),
    ] = NO_PROVIDER
    image: Annotated[
        str,
        Meta(description="image, or a provider's template, where a row and the agent name none"),
    ] = ""
    image_key: Annotated[str, Meta(description="key of a row's image in the data")] = "image"
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "hosts that a sandbox may reach: names, `*.name`, addresses, networks, or `*` for "
                "all; empty: none"
            )
        ),
    ] = ()
    memory_gb: Annotated[float, Meta(gt=0, description="gigabytes of memory of a container")] = 4.0
    processes: Annotated[
        int, Meta(ge=8, description="processes and threads of a container, at most")
    ] = 512
    start_s: Annotated[
        float, Meta(gt=0, description="seconds within which a sandbox must start")
    ] = 120.0
    lasts_s: Annotated[
        float,
        Meta(
            ge=60,
            description="seconds after which a sandbox ends by itself, even if the run is gone",
        ),
    ] = 3600.0
    pulls: Annotated[
        int, Meta(ge=1, le=64, description="images that are pulled at a time, on one machine")
    ] = 2
    pull_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds within which an image must be pulled, with the wait for its turn",
        ),
    ] = 1800.0
    images_gb: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "gigabytes of pulled images that are kept; of those that asyncrl pulled, the "
                "least recently used are removed"
            ),
        ),
    ] = 200.0
    api_key_file: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "file with the provider's key; empty: its variable (E2B_API_KEY, DAYTONA_API_KEY)"
            )
        ),
    ] = ""
    url: Annotated[
        str, Meta(description="address of the provider's API, if not the public one")
    ] = ""
    box_url: Annotated[
        str,
        Meta(
            description=(
                "address of a sandbox's own API, if the provider does not return it; {id} stands "
                "for the sandbox's"
            )
        ),
    ] = ""

    def contradictions(self, whole: Config) -> Contradictions:
        for name in self.hosts:
            if name != ANY_HOST and not is_host(name):
                yield (
                    ("sandbox.hosts",),
                    f"{name[:100]!r} is no host: give names as pypi.org or *.pypi.org, addresses, "
                    "or networks as 10.0.0.0/8",
                )
        if ANY_HOST in self.hosts and len(self.hosts) > 1:
            yield ("sandbox.hosts",), "`*` has all others in it: leave them, or it, out"
        for key in ("url", "box_url"):
            address = getattr(self, key)
            parts = url_parts(address)
            if not address:
                continue
            if parts.scheme not in ("http", "https") or not parts.hostname:
                yield (f"sandbox.{key}",), "an address is https://host, or http://127.0.0.1:port"
            elif parts.scheme == "http" and not TcpAddress(parts.hostname, 0).loopback:
                yield (
                    (f"sandbox.{key}",),
                    "the key would cross the network for all to read: give an https address",
                )
            if parts.username or parts.password:
                yield (f"sandbox.{key}",), "keys are in a file or a variable: remove it from here"
        run = whole.agent.run
        if self.kind != NO_PROVIDER and (not isinstance(run, str) or run in ("", PLAYED_ELSEWHERE)):
            yield (
                ("sandbox.kind", "agent.run"),
                "sandboxes are opened by functions (episode.sandbox), and programs open their own: "
                "set agent.run to a function, or remove kind",
            )
