"""Contradictions between settings. Invariant: a configuration that passes here contradicts itself
nowhere, whatever the machine.

`asyncrl.launch.preflight` checks what depends on the machine: cores, ports, directories.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.cluster import cluster_contradictions
from asyncrl.config.engines import capabilities
from asyncrl.config.flow import flow_contradictions
from asyncrl.config.lending import lending_contradictions
from asyncrl.config.lora import lora_contradictions
from asyncrl.config.losses import drops_equal, loss_contradictions
from asyncrl.config.mix import each, held_out_size, members, mix_contradictions
from asyncrl.config.other_policies import policy_contradictions
from asyncrl.config.ranks import rank_contradictions
from asyncrl.config.schema import PLAYED_ELSEWHERE, Config, TaskConfig
from asyncrl.config.servers import server_contradictions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Arguments that a server which is started gets from asyncrl alone."""


def contradictions(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    c, task, rollout = config, config.task, config.rollout
    if rollout.k_min > rollout.group_size:
        yield (
            ("rollout.k_min", "rollout.group_size"),
            "a group cannot have more verdicts than rollouts: lower k_min or raise group_size",
        )
    if rollout.group_size == 1 and drops_equal(config):
        yield (
            ("rollout.filter", "rollout.group_size"),
            "one reward never varies, so every group would be filtered: raise group_size or set "
            "filter to none",
        )
    if rollout.truncated == "penalize" and rollout.overlong_band > rollout.max_new_tokens:
        yield (
            ("rollout.overlong_band", "rollout.max_new_tokens"),
            "the band ends at the budget, and cannot be longer: lower overlong_band, or set it to "
            "0",
        )
    if c.engine.context_tokens <= rollout.max_new_tokens:
        yield (
            ("engine.context_tokens", "rollout.max_new_tokens"),
            "prompt and response share the context: context_tokens must be larger than "
            "max_new_tokens",
        )
    if c.train.micro_tokens < c.engine.context_tokens:
        yield (
            ("train.micro_tokens", "engine.context_tokens"),
            "the longest rollout must fit in a micro-batch: micro_tokens must be at least "
            "context_tokens",
        )
    if c.machine.cores > 1 and c.machine.trainer_cores >= c.machine.cores:
        yield (
            ("machine.trainer_cores", "machine.cores"),
            "no core is left for generation: lower trainer_cores",
        )
    if c.supervision.stall_s <= task.verdict_s:
        yield (
            ("supervision.stall_s", "task.verdict_s"),
            "a slow verifier would be taken for a stalled run: stall_s must be larger than "
            "verdict_s",
        )
    if c.agent.run:
        yield from _agents(config)
    if wrong := list(mix_contradictions(task)):
        yield from wrong
        return
    evaluation = c.evaluation
    if evaluation.pass_at and max(evaluation.pass_at) > evaluation.samples:
        yield (
            ("evaluation.pass_at", "evaluation.samples"),
            "pass@k is of k different answers: raise samples, or lower each k to it",
        )
    if evaluation.samples and not held_out_size(task):
        yield (
            ("evaluation.samples", "task.eval_size"),
            "no prompt is held out, so there is none to sample: raise eval_size, or set samples "
            "to 0",
        )
    yield from flow_contradictions(config)
    yield from cluster_contradictions(config)
    yield from lending_contradictions(config)
    yield from loss_contradictions(config)
    yield from rank_contradictions(config)
    yield from lora_contradictions(config)
    yield from policy_contradictions(config)
    yield from _task(config)
    declared = capabilities(c.engine.kind)
    if config.staleness.finish_on == "own" and not declared.keeps_versions:
        yield (
            ("staleness.finish_on", "engine.kind"),
            "this engine holds one version, so no rollout can end under an older one: set "
            "finish_on to mixed, or kind to embedded",
        )
    if c.publication.path == "direct":
        yield from _direct(config)
    yield from server_contradictions(config)


def _direct(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Rules of publications straight into engines' weights."""
    if not capabilities(config.engine.kind).direct_transport:
        yield (
            ("publication.path", "engine.kind"),
            "nothing can be sent straight into this engine's weights: set path to staged, or kind "
            "to embedded",
        )
    if config.publication.full_every > 1:
        yield (
            ("publication.path", "publication.full_every"),
            "what changed is found by a copy of what was sent before, which a direct publication "
            "does without: set path to staged, or full_every to 1",
        )
    if config.evaluation.weights == "ema":
        yield (
            ("publication.path", "evaluation.weights"),
            "an average has no place in the weights that engines decode with: set path to staged, "
            "or weights to current",
        )


def _agents(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    agent, rollout, staleness = config.agent, config.rollout, config.staleness
    if agent.port and agent.port + agent.actors > 2**16:
        yield (
            ("agent.port", "agent.actors"),
            "each agents actor has a port of its own, and there are not so many: lower port",
        )
    if agent.sandbox != "none" and agent.run == PLAYED_ELSEWHERE:
        yield (
            ("agent.run", "agent.sandbox"),
            "programs elsewhere are not started by the run, which cannot put them in a sandbox: "
            "set sandbox to none",
        )
    if agent.paths and (agent.sandbox == "none" or isinstance(agent.run, str)):
        yield (
            ("agent.paths", "agent.sandbox"),
            "paths are what a program of agent.run sees in the sandbox, and there is none: remove "
            "paths, or set sandbox to bwrap and run to a command",
        )
    if rollout.truncated == "penalize":
        yield (
            ("agent.run", "rollout.truncated"),
            "the band is of one response, and an agent's rollout has many: set truncated to keep "
            "or mask",
        )
    if staleness.finish_on == "own":
        yield (
            ("agent.run", "staleness.finish_on"),
            "an episode outlives many versions, and engines do not keep them all: set finish_on "
            "to mixed",
        )


def _task(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    if not config.task.mix:
        yield from _one_task(config, config.task)
    for label, member in members(config.task).items():
        for keys, remedy in _one_task(config, member):
            said = " and ".join(key.removeprefix("task.") for key in keys)
            yield ("task.mix",), f"{said} of the task {label!r}: {remedy}"
    yield from _unused_verifiers(config.task)


def _unused_verifiers(task: TaskConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Verifiers that no line of jsonl would have: answers would be judged by another one."""
    remedy = (
        "data sets of reasoning-gym have verifiers of their own: set name to jsonl, or remove "
        "verifier"
    )
    if task.verifier != TaskConfig().verifier and all(one.name != "jsonl" for one in each(task)):
        yield ("task.name", "task.verifier"), remedy
    for label, member in members(task).items():
        if "verifier" in task.mix[label] and member.name != "jsonl":
            yield ("task.mix",), f"verifier of the task {label!r}: {remedy}"


def _one_task(config: Config, task: TaskConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    if task.name == "jsonl":
        if not task.path:
            yield ("task.name", "task.path"), "name the file of prompts in task.path"
        if task.params:
            yield (
                ("task.name", "task.params"),
                "parameters belong to reasoning-gym data sets: remove task.params",
            )
    else:
        for key, value in (("task.path", task.path), ("task.eval_path", task.eval_path)):
            if value:
                yield (
                    ("task.name", key),
                    "files are read when task.name is jsonl: set it, or remove the path",
                )
    if task.chat and not config.model.path:
        yield (
            ("task.chat", "model.path"),
            "the bundled model has no chat template: set model.path or turn chat off",
        )
    if not task.chat and "{question}" not in task.template:
        yield (
            ("task.template",),
            "the prompt would not contain the question: put {question} in the template",
        )


Config.rules.append(contradictions)
