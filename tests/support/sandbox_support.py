"""A mark for tests of the sandbox that only run where this machine has it."""

from __future__ import annotations

import pytest

from asyncrl.sandbox.support import support

needs_strict = pytest.mark.skipif(
    bool(support().missing),
    reason=f"this machine does not have the sandbox strict: {support().missing}",
)
