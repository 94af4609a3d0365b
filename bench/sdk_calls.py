"""60 ordinary calls of each dialect by the official clients against a gateway, whose answers must
be as the clients' own types have them: no field more, and none less.

    .venv/bin/python bench/sdk_calls.py [PYTHON [REFERENCE_URL REFERENCE_KEY]]

`PYTHON` is an interpreter that has the packages `openai`, `anthropic` and `openai-agents` (default:
this one); those that it does not have are left out, and named. The model is scripted: it calls the
tool that it is shown, once, and then says something.

A reference is another server of these APIs, with a model named `any-model`. It gets the same calls,
and the two servers' answers are compared: the order of a stream's parts, and the fields
that no answer of the other has.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from gateway_world import KEY, Script, say, scripted, served, write_chat

from asyncrl.engines.protocol import Request

CLIENT = Path(__file__).with_name("sdk_calls_client.py")
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
Shapes = Mapping[str, Mapping[str, list[str]]]
"""By call: its answer's fields, and the order of the parts of a stream."""


def answer(request: Request) -> Script:
    """A call of the tool that is shown, or a text."""
    context = bytes(np.where(request.ids < 256, request.ids, 10).astype(np.uint8)).decode()
    if "[tools]" in context and "[tool]" not in context:
        if "apply_patch" in context:
            return say(CALL.format("apply_patch", '{"input": "*** Begin"}'))
        return say(CALL.format("add", '{"a": 1}'))
    return say("Hello.")


def differences(ours: Shapes, theirs: Shapes) -> Iterator[str]:
    """A line for each dialect and way, and for each difference with its number of calls."""
    for kind in sorted({" ".join(call.split(" ", 2)[:2]) for call in ours}):
        calls = [call for call in ours if call.startswith(f"{kind} ")]
        both = [call for call in calls if call in theirs]
        same = sum(_steps(ours[call]) == _steps(theirs[call]) for call in both)
        yield f"{kind}: {len(both)} of {len(calls)} answered by both, {same} in the same order"
        for call in sorted({*calls} - {*both}):
            yield f"  ours alone answered {call}"
        for call in both:
            if (mine := _steps(ours[call])) != (other := _steps(theirs[call])):
                yield f"  order, ours {' '.join(mine)}; the reference {' '.join(other)}"
        for who, one, other in (("ours", ours, theirs), ("the reference", theirs, ours)):
            known = {field for call in both for field in other[call]["fields"]}
            alone = Counter(field for call in both for field in one[call]["fields"])
            for field in sorted(alone.keys() - known):
                yield f"  {alone[field]} x {who} alone: {field}"


def _steps(shape: Mapping[str, list[str]]) -> list[str]:
    """The order of parts, where what may come again counts once."""
    return re.sub(r"(\S+ \S+ )\1+", r"\1", " ".join(shape["order"]) + " ").split()


async def main(python: str, reference: str = "", key: str = "") -> int:
    """Serve, have the clients call, and compare with a reference if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("ours.json", "theirs.json")]
        tokenizer, engine = write_chat(Path(folder)), scripted(answer)
        await engine.load(0, None)
        async with served(engine, tokenizer) as (_, url):
            done = await call(python, f"{url}/sessions/r1-1", KEY, files[0])
        if reference:
            print(f"\n{reference}:", flush=True)
            await call(python, reference, key, files[1])
            ours, theirs = (json.loads(file.read_text()) for file in files)
            print("\n".join(differences(ours, theirs)))
    return done


async def call(python: str, url: str, key: str, shapes: Path) -> int:
    """Have the clients call one server; return their exit status."""
    command = [python, str(CLIENT), url, key, str(shapes)]
    return (await trio.run_process(command, check=False, stdin=subprocess.DEVNULL)).returncode


if __name__ == "__main__":
    raise SystemExit(trio.run(main, *(sys.argv[1:] or [sys.executable])))
