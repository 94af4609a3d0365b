"""GRPO by hand: the whole training loop in one process, from top to bottom.

    python docs/examples/grpo_by_hand.py

A small model with random weights learns to answer in digits, in less than a minute on two cores. A
run (`asyncrl train`) uses the same learner and the same engine, in processes that do not wait for
each other.
"""

import argparse
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import asyncrl as rl

PROMPTS, GROUP = 8, 16  # prompts in a step, and responses to each


def digits(answer: rl.Answer, line: Mapping[str, Any]) -> float:
    """The verifier, a function: the share of the answer's characters that are digits."""
    return sum(character in "0123456789" for character in answer) / max(1, len(answer))


def train(steps: int) -> list[float]:
    """Train, and return the mean reward of each step."""
    # 1. Settings have the names of run.toml, and are checked here.
    config = rl.Config(
        model=rl.ModelConfig(warmup_steps=0),  # the bundled one, untrained; or path="org/name"
        rollout=rl.RolloutConfig(max_new_tokens=8, temperature=1.0),
        engine=rl.EngineConfig(context_tokens=64, slots=PROMPTS * GROUP),
        # The advantage is a response's reward minus the mean of its group (Dr. GRPO); "grpo" also
        # divides it by the group's standard deviation.
        train=rl.TrainConfig(advantage="dr_grpo", objective="clip", lr=2e-3, lr_warmup_steps=0),
        # A token may be one version old when it is trained. In this loop each is of the newest,
        # because the sampler takes the weights of each step: it is exactly on-policy.
        staleness=rl.StalenessConfig(max_lag=1),
    )
    # 2. Where prompts come from. rl.open_task(config) opens a data set of reasoning-gym or a JSONL
    #    file, as [task] says.
    task = rl.ListTask([{"prompt": f"Say number {n}: "} for n in range(100)], digits)

    # 3. Who learns, and who samples. Each has weights of its own.
    model = rl.starting_model(config)
    learner, sampler = rl.Learner(model, config), rl.Sampler(model, config)

    rewards = []
    for step in range(steps):
        began = time.monotonic()
        # 4. Sample GROUP responses to each prompt; those to one prompt come one after another. Each
        #    has its ids, the exact log-probability of each token, and the version that sampled it.
        chosen = [(step * PROMPTS + n) % task.size("train") for n in range(PROMPTS)]
        sampled = sampler.generate([task.prompt("train", index) for index in chosen], GROUP)

        # 5. Judge them: copy each sequence with the reward that the verifier gives its answer.
        judged = [
            sequence.rewarded(task.verify("train", chosen[n // GROUP], sequence.answer))
            for n, sequence in enumerate(sampled)
        ]
        # 6. Add their gradient: `add` computes the advantages of each group (the sampler has
        #    numbered the groups), and with them the clipped loss of each token.
        learner.add(judged)

        # 7. One optimizer step, which makes the next version.
        figures = learner.step()

        # 8. The sampler takes its weights. k3, printed below, estimates how far the trainer's
        #    log-probabilities of the sampled tokens are from the sampler's: about 0 here.
        sampler.load(learner)

        rewards.append(fmean(sequence.reward or 0.0 for sequence in judged))
        print(
            f"version {figures.version:3}  reward {rewards[-1]:.3f}  "
            f"k3 {figures.metrics['k3']:.1e}  {figures.trained} tokens trained  "
            f"{time.monotonic() - began:.2f} s"
        )
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    train(parser.parse_args().steps)
