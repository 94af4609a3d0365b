"""SGLang's own models on a plain CPU. Invariant: unless SGLANG_PLATFORM names this plug-in it
changes nothing and imports nothing.

SGLang calls the entry point of every installed platform plug-in, on a machine with a GPU too, where
this one would take the GPU's place.
"""

import os


def activate() -> str | None:
    """The class of the platform, as `module:name`; None where SGLANG_PLATFORM does not ask for
    it."""
    asked = os.environ.get("SGLANG_PLATFORM") == "cpu_native"
    return "cpu_native.platform:CpuNative" if asked else None
