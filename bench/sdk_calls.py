"""60 ordinary calls of each dialect by the official clients against a gateway, whose answers must
be as the clients' own types have them: no field more, and none less.

    .venv/bin/python bench/sdk_calls.py [PYTHON]

`PYTHON` is an interpreter that has the packages `openai`, `anthropic` and `openai-agents` (default:
this one); those that it does not have are left out, and named. The model is scripted: it calls the
tool that it is shown, once, and then says something.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from gateway_world import KEY, Script, say, scripted, served, write_chat

from asyncrl.engines.protocol import Request

CLIENT = Path(__file__).with_name("sdk_calls_client.py")
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def answer(request: Request) -> Script:
    """A call of the tool that is shown, or a text."""
    context = bytes(np.where(request.ids < 256, request.ids, 10).astype(np.uint8)).decode()
    if "[tools]" in context and "[tool]" not in context:
        if "apply_patch" in context:
            return say(CALL.format("apply_patch", '{"input": "*** Begin"}'))
        return say(CALL.format("add", '{"a": 1}'))
    return say("Hello.")


async def main(python: str) -> int:
    """Serve, and have the clients call."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, engine = write_chat(Path(folder)), scripted(answer)
        await engine.load(0, None)
        async with served(engine, tokenizer) as (_, url):
            command = [python, str(CLIENT), f"{url}/sessions/r1-1", KEY]
            done = await trio.run_process(command, check=False, stdin=subprocess.DEVNULL)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(trio.run(main, sys.argv[1] if len(sys.argv) > 1 else sys.executable))
