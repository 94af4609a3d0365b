"""The card of a trained model: the README.md of its directory, as the Hugging Face hub reads one.

Invariant: the card says what the run's settings and summary say, and calls the rest unknown. Names
and paths are a user's text, and are never read as markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from asyncrl.config import Config
from asyncrl.config.journal_size import steps
from asyncrl.config.mix import named
from asyncrl.config.model_names import of_snapshot, said
from asyncrl.escape import escaped
from asyncrl.explain.rows import FigureRow, summary_rows
from asyncrl.explain.summary import Summary
from asyncrl.files import write_whole
from asyncrl.runtime.run_dir import MODEL, MODEL_EMA
from asyncrl.words import number

CARD = "README.md"
RESULTS = frozenset(
    {
        "result",
        "held-out accuracy",
        "held-out loss",
        "evaluated",
        "reward",
        "responses",
        "length",
        "tokens",
    }
)
"""The rows of the summary that a card has."""


def write_cards(run: Path, config: Config, summary: Summary, version: str) -> list[Path]:
    """Write the card of each model of the run's last step, where one is. Returns their paths.
    Raises OSError."""
    written = []
    for name in (MODEL, MODEL_EMA):
        if (run / name / "config.json").is_file():
            path = run / name / CARD
            write_whole(path, card(config, summary, version))
            written.append(path)
    return written


def card(config: Config, summary: Summary, version: str) -> str:
    """The card of the model that `asyncrl` of this `version` trained.

    Its head is YAML: the tags by which a hub finds it, and held-out accuracy as a result. A task
    named `a: b` is `"a: b"` there, because a JSON string is one of YAML.
    """
    task, base = named(config.task), said(config.model.path) or "asyncrl's bundled small model"
    of_hub = of_snapshot(config.model.path)
    end, quoted = summary.accuracy.end, json.dumps(escaped(task))
    kind = "supervised fine-tuning" if config.sft.run else "reinforcement learning"
    head = [
        "library_name: transformers",
        "license: unknown",
        f"tags: [{kind.replace(' ', '-')}, asyncrl]",
    ]
    if of_hub is not None:
        head += ["base_model: " + json.dumps(of_hub.repository)]
    if end is not None:
        head += [
            "model-index:",
            "- name: " + json.dumps(Path(of_hub.repository if of_hub else base).name),
            "  results:",
            "  - task: {type: reinforcement-learning}",
            f"    dataset: {{name: {quoted}, type: {quoted}}}",
            f"    metrics: [{{name: held-out accuracy, type: accuracy, value: {end:.4f}}}]",
        ]
    train, staleness = config.train, config.staleness
    of_rollouts = [
        ("reward", config.task.reward),
        ("advantage, objective", f"{train.advantage}, {train.objective}"),
        ("groups a step, rollouts a group", f"{train.batch_groups}, {config.rollout.group_size}"),
        ("lag", f"at most {staleness.max_lag} versions; {number(summary.lag.mean)} in the mean"),
        ("corrections", ", ".join(each.kind for each in staleness.correction) or "none"),
    ]
    facts = [
        ("base model", base),
        ("task", task),
        *([("loss on", config.sft.loss_on)] if config.sft.run else of_rollouts),
        ("learning rate", f"{train.lr:g}"),
        ("seed", str(config.run.seed)),
        ("steps", f"{summary.steps} of {steps(config)}"),
        ("asyncrl", version),
    ]
    results = [row for row in summary_rows(summary) if row[0] in RESULTS]
    return "\n".join(
        [
            "---",
            *head,
            "---",
            "",
            f"# A model trained by {kind} with asyncrl",
            "",
            *_table(facts),
            "",
            "## Results",
            "",
            *_table(results),
            "",
            "The licenses of the base model and of the task's data, which asyncrl does not know, "
            "apply to this model too. All settings are in `run.toml` of the run.",
            "",
        ]
    )


def merged_card(parts: Sequence[tuple[str, float]], based: bool, version: str) -> str:
    """The card of a model that `asyncrl` of this `version` merged from `parts`: the name of each
    and the factor of its weights, that of the base first if it is task arithmetic (`based`)."""
    how = "task arithmetic over the first" if based else "a mean of their weights"
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "license: unknown",
            "tags: [merge, asyncrl]",
            "---",
            "",
            "# A model merged with asyncrl",
            "",
            *_table([("merged by", how), ("asyncrl", version)]),
            "",
            "| model | factor |",
            "|---|---|",
            *(f"| {_plain(name)} | {factor:g} |" for name, factor in parts),
            "",
            "Each weight is the sum of the models' weights times their factors. The licenses of "
            "these models apply to this one too.",
            "",
        ]
    )


def _table(rows: list[FigureRow]) -> list[str]:
    """A table of two columns. Each character that markdown or HTML could take for its own is
    written as a reference."""
    return ["| | |", "|---|---|", *(f"| {name} | {_plain(text)} |" for name, text in rows)]


def _plain(text: str) -> str:
    return "".join(
        one if one.isalnum() or one in " .,;:-+/%→–=()'" else f"&#{ord(one)};"
        for one in escaped(text)
    )
