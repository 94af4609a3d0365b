"""TRL's GRPO trainer on the configuration of an asyncrl run: the other side of `vs_trl.py`, which
starts it.

The same model, prompts, verifier, reward, optimizer, schedule, clipping and normalization; what
differs is the system. The default cache, float32, no checkpointed activations, no reports; what
else it may be is `Way`. A step is one generation, however often the weights are updated with it.
Saves weights as often as asyncrl does, outside its clock.

    python bench/trl_run.py RUN.toml FOLDER [WAY]  # the configuration, where weights and
                                                   # `times.json` go, and a `Way` as JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_way import Way

from asyncrl import config as configuration
from asyncrl.config import Config
from asyncrl.tasks import open_task
from asyncrl.training.models import load_model
from asyncrl.training.schedule import learning_rate


class Clock(TrainerCallback):
    """Seconds from the first prompt to the end of each step, and the weights of some steps; the
    seconds of saving are not counted."""

    def __init__(self, folder: Path, every: int, model: Any, per_step: int) -> None:
        self.folder, self.every, self.model, self.per_step = folder, every, model, per_step
        self.begun = 0.0
        self.times: dict[int, float] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        step, more = divmod(state.global_step, self.per_step)
        if more:
            return
        now = time.perf_counter()
        self.times[step] = now - self.begun
        if step % self.every == 0:
            self.model.save_pretrained(self.folder / f"step-{step:06d}")
        self.begun += time.perf_counter() - now


def train(config: Config, folder: Path, way: Way) -> dict[int, float]:
    """Seconds to the end of each step."""
    torch.manual_seed(config.run.seed)
    settings, rollout = config.train, config.rollout
    task = open_task(config.task, config.run.seed)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, local_files_only=True)
    model = load_model(Path(config.model.path), torch.float32)
    items = range(min(task.size("train"), settings.steps * settings.batch_groups))
    prompts = Dataset.from_list(
        [
            {"prompt": task.prompt("train", prompt_index), "prompt_index": prompt_index}
            for prompt_index in items
        ]
    )

    def reward(completions: list[str], prompt_index: list[int], **_: Any) -> list[float]:
        return [
            task.verify("train", which, answer)
            for which, answer in zip(prompt_index, completions, strict=True)
        ]

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: learning_rate(settings, update // way.per_step) / settings.lr
    )
    halves = 2 if way.updates == "halves" else 1
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=config.run.seed,
        max_steps=settings.steps * way.per_step,
        per_device_train_batch_size=settings.batch_groups
        * rollout.group_size
        // (halves * way.parts),
        gradient_accumulation_steps=way.parts,
        steps_per_generation=halves * way.parts,
        num_iterations=2 if way.updates == "two" else 1,
        use_transformers_continuous_batching=way.continuous,
        num_generations=rollout.group_size,
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        epsilon=settings.clip_lo,
        epsilon_high=settings.clip_hi,
        max_grad_norm=settings.grad_clip,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock(folder, settings.checkpoint_every, model, way.per_step)
    trainer = GRPOTrainer(
        model,
        reward,
        arguments,
        prompts,
        processing_class=tokenizer,
        callbacks=[clock],
        optimizers=(optimizer, schedule),
    )
    trainer.train()
    return clock.times


def main() -> None:
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    way = msgspec.json.decode(sys.argv[3], type=Way) if len(sys.argv) > 3 else Way()
    transformers.logging.set_verbosity_error()
    (folder / "times.json").write_text(json.dumps(train(configuration.read(path), folder, way)))


if __name__ == "__main__":
    main()
