"""Hosts that a sandbox may reach. Pure."""

from __future__ import annotations

import ipaddress
import re

NO_PROVIDER = "none"
"""`sandbox.kind` where agents open no sandboxes."""
ANY_HOST = "*"
"""The entry of `sandbox.hosts` that stands for every host."""
_DOMAIN = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")


def is_host(text: str) -> bool:
    """True for a name, `*.` and a name, an IP address and a network.

    >>> [is_host(text) for text in ("*.pypi.org", "10.0.0.0/8", "--all", "a b.org")]
    [True, True, False, False]
    """
    return _DOMAIN.fullmatch(text) is not None or is_network(text)


def is_network(text: str) -> bool:
    """True for an IP address or a network.

    >>> is_network("10.0.0.0/8"), is_network("pypi.org")
    (True, False)
    """
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
