"""`asyncrl` as the tests of the pages run it: the command as it is written, but a run is of a tiny
model, and of six steps, or twelve (`FEW`); faults are looked for in two seeds, and a cluster has
two engines for 5 s. Where servers of their own would start (tests/sglang and tests/vllm run it), or
where another test shows such a run (`SHOWN`), it is checked and not run.

    python page_asyncrl.py ADDRESS MODEL WORDS …

ADDRESS is that of the warm process (`warm.py`), which commands are forked from.
"""

from __future__ import annotations

import sys
from pathlib import Path

from warm import run

BRIEF = {
    "train.batch_groups": 2,
    "train.eval_every": 0,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 16,
    "rollout.filter": "none",
    "engine.slots": 8,
    "engine.compile": "false",
    "engine.context_tokens": 512,
    "task.eval_size": 8,
    "evaluation.samples": 0,
    "supervision.grace_s": 5.0,
}
SMALL = {"0:200": "0:2", "64": "2", "16": "1"}
"""Seeds, engines and trainers of a page, and those that are simulated."""
SHOWN = {
    "run.page_port": "runs/test_an_operators_way.py",
    "run.sinks=tensorboard": "explain/sinks/test_real_sinks.py",
    "run.sinks=mlflow": "explain/sinks/test_real_sinks.py",
}
"""Settings of a page, as they begin, by the test that shows them in a run or, of a sink, with its
library; the run with both sinks of files stays."""
FEW = {"train.steps=40": "train.steps=12"}
"""Steps of a page, and those that are made: twice as many as `calibrate` needs."""


def brief(words: list[str], model: str) -> list[str]:
    """The words of a shorter command. A bucket is a folder here."""
    words = [word.replace("s3://", f"{Path.cwd().as_uri()}/") for word in words]
    if words[0] == "train" and "--resume" not in words:
        served = any(word in ("engine.kind=sglang", "engine.kind=vllm") for word in words)
        shown = any(word.startswith((*SHOWN,)) for word in words)
        first = {"model.path": model, "train.steps": 6}  # the command's own come behind them
        if "run.toml" in words and 'path = "model"' in Path("run.toml").read_text():
            del first["model.path"]  # the page has made one, which reads images
        before, after = (
            [f"--set={name}={value}" for name, value in each.items()] for each in (first, BRIEF)
        )
        few = [FEW.get(word, word) for word in words[1:]]
        return ["check" if served or shown else "train", *before, *few, *after]
    if words[0] == "simulate":
        little = ["--hours=0.0015", "--set=train.batch_groups=1"] if "--engines" in words else []
        return [*(SMALL.get(word, word) for word in words), *little]
    return words


if __name__ == "__main__":
    address, model, *words = sys.argv[1:]
    sys.exit(run(address, "asyncrl.cli", brief(words, model)) & 0xFF)
