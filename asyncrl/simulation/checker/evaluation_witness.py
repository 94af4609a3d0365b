"""Accuracies that the display shows, recounted from the weights that were evaluated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from statistics import fmean

from asyncrl.experience import events as e
from asyncrl.messages import StatusUpdate
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceGroup


class EvaluationWitness:
    """Watches the evaluations of a run."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self._evaluated: set[int | None] = set()  # versions whose accuracy this life began with
        self._mixed: set[int | None] = set()  # versions evaluated by answers of later ones, too

    def begin(self, evaluated: Collection[int]) -> None:
        """A life begins with the accuracies of these versions."""
        self._evaluated = set(evaluated)

    def dropped(self, event: e.Dropped, group: ReferenceGroup) -> bool:
        """A group is dropped. True if that gives an evaluation up."""
        members = self._run.reference.members(group)
        # its last answers may be lost where its accuracy, which is written before them, is not
        version = group.admitted_version if group.event.version is None else group.event.version
        if event.reason == "evaluation" and any(
            sampled_by != version for seen in members for sampled_by in seen.versions
        ):
            self._mixed.add(version)
        known = version in self._evaluated
        unjudged = any(seen.verdict is None for seen in members)
        return group.event.split == "evaluation" and unjudged and not known

    def shown(self, update: StatusUpdate) -> None:
        """The display shows this accuracy, and these figures."""
        run = self._run
        weights = run.weights_of("evaluation", update.accuracy_version)
        mixed = update.accuracy_version in self._mixed
        run.hold(
            "evaluation",
            mixed or bool(run.config.agent.run) or "mixed" not in update.evaluated,
            "answers of version {} are said to be mixed, and are not",
            update.accuracy_version,
        )
        exact = not (
            mixed or run.refused or run.reference.buried["evaluation"] or run.config.agent.run
        )
        if weights is not None and exact:
            held_out = [run.prompts.ids("evaluation", n) for n in run.prompts.evaluation_items()]
            due = policy.accuracy(weights, held_out, run.config.rollout.max_new_tokens, run.rewards)
            run.hold(
                "evaluation",
                update.accuracy == due,
                "version {} is said to be right in {:g}, and is in {:g} of all answers",
                update.accuracy_version,
                update.accuracy,
                due,
            )
            figures = self._figures(weights, held_out)
            run.hold(
                "evaluation",
                update.evaluated.keys() == figures.keys()
                and all(abs(update.evaluated[name] - figures[name]) < 1e-9 for name in figures),
                "version {} is said to have {}, and has {}",
                update.accuracy_version,
                update.evaluated,
                figures,
            )

    def _figures(self, weights: int, held_out: Sequence[bytes]) -> dict[str, float]:
        """avg@n and pass@k of these weights, counted: over every choice of k samples."""
        run = self._run
        samples, ks = run.config.evaluation.samples, run.config.evaluation.pass_at
        right = [
            [
                policy.answers_rightly(
                    weights,
                    run.sample_draws(prompt, prompt_index, sample),
                    prompt_index,
                    run.config.rollout.max_new_tokens,
                    run.rewards,
                )
                for sample in range(samples)
            ]
            for prompt_index, prompt in enumerate(held_out)
        ]
        figures: dict[str, float] = {}
        first = 0
        for label, size in [("", len(held_out)), *self._held_out_sizes().items()]:
            end = first + size
            if label and size:
                figures[f"accuracy/{label}"] = policy.accuracy(
                    weights, held_out[:end], run.config.rollout.max_new_tokens, run.rewards, first
                )
            suffix = f"/{label}" if label else ""
            if samples and size:
                figures[f"avg@{samples}{suffix}"] = fmean(map(fmean, right[first:end]))
            for k in ks if size else ():
                figures[f"pass@{k}{suffix}"] = fmean(
                    any(chosen)
                    for of_prompt in right[first:end]
                    for chosen in combinations(of_prompt, k)
                )
            first = end if label else 0
        return figures

    def _held_out_sizes(self) -> dict[str, int]:
        """Held-out prompts of each of several tasks."""
        task = self._run.config.task
        return {label: table.get("eval_size", task.eval_size) for label, table in task.mix.items()}
