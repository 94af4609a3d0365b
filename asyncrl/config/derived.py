"""Table of derived values that is printed before a run. Invariant: every number is computed from
the settings alone, by the rule in its row; nothing is measured or guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from asyncrl.algorithms.selection.keep import number_kept
from asyncrl.config.advice import advice
from asyncrl.config.cluster import agent_cores, joined, local_rollouts, ranks_here
from asyncrl.config.cores import divide_cores
from asyncrl.config.flow import admission_policy, max_group_size, max_members, penalty_band
from asyncrl.config.gpus import agent_gpus, gpus_of
from asyncrl.config.journal_size import journal_bytes, journal_steps, queue_bytes, steps
from asyncrl.config.judging import judge_rows
from asyncrl.config.lending import is_lent
from asyncrl.config.losses import (
    clip_bounds,
    clips_nothing,
    loss_mean,
    minibatch_rule_of,
    objective_of,
    one_update,
    ratios_weigh,
    updates,
)
from asyncrl.config.mix import each, members, shares
from asyncrl.config.other_policies import policy_rows
from asyncrl.config.ranks import ranks_of
from asyncrl.config.sandbox_row import sandbox_rows
from asyncrl.config.schema import Config, TaskConfig, TrainConfig
from asyncrl.config.tags import tag_rows
from asyncrl.staleness.admission import AdmissionPolicy
from asyncrl.words import size

LARGE_STATE = 10**9
"""Bytes of live token arrays above which each checkpoint takes noticeable time."""

RANKS = "processes that train the model together, each with a shard of it (FSDP2)"
SANDBOXES = {
    "auto": "strict where this machine has it",
    "strict": "no key, no network, no file but Python's; executed answers each in a fresh process",
    "process": "processes that can be killed, without isolation except for the environment",
}
"""The meaning of `task.sandbox`, in a line."""


REWARDS = {
    "auto": "exact where the data set gives partial credit for junk, else score",
    "exact": "1 for a right answer, 0 for any other: training and evaluation use the same measure",
    "score": "the verifier's score; evaluation counts answers with 1 or more",
}
"""The meaning of `task.reward`, in a line."""


CREDITS = {
    "episode": "",
    "to_go": ", of rewards to go",
    "below": ", of rewards below each turn",
}
"""Returns that an advantage compares, by `train.credit`, in words."""


class Row(NamedTuple):
    """One line of the table."""

    name: str
    value: str
    meaning: str


PROGRAMS = Row(
    "programs",
    "bwrap",
    "answers of the verifier run, each in a fresh sandbox: no network, the system read-only",
)
"""The additional text where answers are programs."""


def _large_state(config: Config, routing: int) -> list[Row]:
    """A warning where live tokens, which each checkpoint writes, may be very many."""
    if (live := queue_bytes(config, routing)) < LARGE_STATE:
        return []
    return [
        Row(
            "note",
            "train.checkpoint_every",
            f"each checkpoint writes the tokens of all live rollouts, ≤ {size(live)}, into the "
            "journal, and blocks the coordinator while it encodes them: give the coordinator "
            "twice that memory, or lower rollout.max_new_tokens, train.batch_groups or "
            "staleness.depth",
        )
    ]


def _epochs(number: float) -> str:
    """A number of epochs in words.

    >>> [_epochs(number) for number in (0.0064, 2.5, 40.0, 3200.0)]
    ['0.0064 epochs', '2.5 epochs', '40 epochs', '3,200 epochs']
    """
    return f"{number:.2g} epochs" if number < 10 else f"{number:,.0f} epochs"


def _mix_rows(task: TaskConfig) -> list[Row]:
    """A row for each task of the mix: its source, its shares, its prompts."""
    task_shares = shares(task)
    return [
        Row(
            f"task {label}",
            member.path or member.name,
            (" → ".join(f"{share:.0%}" for share in task_shares[label]) + " of the prompts")
            if any(task_shares[label])
            else "evaluated alone",
        )
        for label, member in members(task).items()
    ]


def _agent_rows(config: Config) -> list[Row]:
    """The row of agents; none where a rollout is one turn."""
    agent = config.agent
    if not agent.run:
        return []
    run = agent.run if isinstance(agent.run, str) else " ".join(agent.run)
    means = f"plays each rollout, ≤ {agent.actors * agent.concurrency:,} at a time"
    sandbox = "" if agent.sandbox == "none" else f"; programs in {agent.sandbox}"
    return [
        Row("agent", run, f"{means}, ≤ {agent.max_calls} calls each{sandbox}"),
        *(Row(*row) for row in sandbox_rows(config.sandbox)),
    ]


def derived(config: Config, available: int, routing: int | None = 0) -> list[Row]:
    """The table, for a machine where this process may use `available` cores, and a model whose
    tokens have records of experts of `routing` bytes (None: unknown)."""
    routed = routing or 0
    ranks, gpus = ranks_of(config.train), gpus_of(config)
    return [
        *_data(config),
        *_agent_rows(config),
        *_sizes(config, routing),
        *_learning(config),
        *(Row(*row) for row in policy_rows(config)),
        *(Row(*row) for row in judge_rows(config)),
        *([Row("ranks", str(ranks), RANKS)] if ranks > 1 else []),
        *_cores(config, available),
        *_cluster(config),
        *(Row(*row) for row in tag_rows(config)),
        *([Row("GPUs", str(gpus.needed), str(gpus))] if gpus.needed else []),
        *_ports(config),
        *(Row("note", key, text) for key, text in advice(config)),
        *_large_state(config, routed),
    ]


def _data(config: Config) -> list[Row]:
    """Rows of the tasks, and of what judges their answers."""
    task = config.task
    judged = [
        Row("sandbox", task.sandbox, SANDBOXES[task.sandbox]),
        *([PROGRAMS] if any(one.verifier == "run" for one in each(task)) else []),
    ]
    if task.mix:
        return [*_mix_rows(task), *judged]
    params = ", ".join(f"{name}={value}" for name, value in task.params.items())
    return [
        Row("task", task.path or task.name, params or "default parameters"),
        *judged,
        Row("reward", task.reward, REWARDS[task.reward]),
    ]


def _model(config: Config) -> str:
    """A model's weights, and whether an agent can expect anything of it."""
    weights = f"{config.model.dtype} weights"
    if config.model.path or not config.agent.run:
        return weights
    known = "only the task's bare prompts" if config.model.warmup_steps else "nothing yet"
    return f"{weights}; it knows {known}: for an agent that asks otherwise set model.path"


def _sizes(config: Config, routing: int | None) -> list[Row]:
    """Rows of how much is generated, at one time and in all."""
    records, routed, task = _records(routing), routing or 0, config.task
    policy, slots = admission_policy(config), config.rollout.actors * config.engine.slots
    live, prompts = _live(config), steps(config) * config.train.batch_groups
    return [
        Row("truncated", config.rollout.truncated, _truncated(config)),
        Row("model", config.model.path or "bundled", _model(config)),
        Row("run directory", config.run.dir, "configuration, logs, journal, checkpoints, summary"),
        Row(
            "steps at most",
            f"{steps(config):,}",
            f"{prompts:,} prompts of {task.train_size:,}: {_epochs(prompts / task.train_size)}",
        ),
        *_curriculum(config),
        *_step(config),
        Row(
            "groups live",
            f"≤ {policy.max_live:,}",
            f"{policy.formula}; {live:,} rollouts{_more(policy)}",
        ),
        Row("slots", f"{slots:,}", _slots(slots, live)),
        Row(
            "queue",
            f"≤ {size(queue_bytes(config, routed))}",
            f"token arrays of the live rollouts{records}",
        ),
        Row("journal", f"≤ {size(journal_bytes(config, routed))}", _journal(config)),
        Row("lag, typical", str(config.staleness.depth), "versions that generation runs ahead"),
        _worst(config, policy),
    ]


def _learning(config: Config) -> list[Row]:
    """Rows of the loss, and of the policies that it compares."""
    train, staleness = config.train, config.staleness
    return [
        Row(
            "loss",
            train.objective,
            f"{objective_of(train).describe(clip_bounds(train))}; "
            f"advantage {train.advantage}, by {train.unit}"
            f"{_credited(train)}; mean by {loss_mean(train)}",
        ),
        Row(
            "correction",
            ", ".join(entry.kind for entry in staleness.correction) or "none",
            _weighs(config),
        ),
        *_updates(config),
        Row("proximal policy", staleness.proximal, _proximal(config, _live(config))),
    ]


def _cores(config: Config, available: int) -> list[Row]:
    """Rows of the cores of this machine, and of devices that are lent."""
    rollout, total = config.rollout, config.machine.cores or available
    share = divide_cores(
        range(total),
        ranks_here(config),
        local_rollouts(config),
        config.machine.trainer_cores,
        rollout.lent_actors,
    )
    lent = f"; {rollout.lent_actors} of these the trainer's" if rollout.lent_actors else ""
    return [
        Row(
            "cores",
            f"{total} of {available}",
            f"trainer {_counts(share.trainers)}; rollout actors "
            f"{'elsewhere' if joined(config) else _counts(share.rollouts)}{lent}",
        ),
        *([Row("lending", rollout.lending, _lent(config))] if rollout.lent_actors else []),
    ]


def _ports(config: Config) -> list[Row]:
    """Rows of what the run serves."""
    metrics, page = config.metrics.port, config.run.page_port
    at = f"http://{config.metrics.host}:{metrics}/metrics" if metrics else "off"
    served = Row("page", f"http://{config.run.page_host}:{page}/", "the run, in a browser")
    return [Row("metrics", at, "Prometheus"), *([served] if page else [])]


def _live(config: Config) -> int:
    """Rollouts that are live at one time."""
    return admission_policy(config).max_live * max_group_size(config)


def _lent(config: Config) -> str:
    """Describe the actors that share the trainer's devices, and when."""
    rollout = config.rollout
    names = [f"rollout-{n}" for n in range(rollout.actors) if is_lent(config, n)]
    when = (
        "at a low priority" if rollout.lending == "priority" else "while it is idle, if that pays"
    )
    who = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{who} on the trainer's devices, {when}"


def _cluster(config: Config) -> list[Row]:
    """Rows of the machines that join; none where all actors run here."""
    if not joined(config):
        return []
    cluster, actors = config.cluster, config.rollout.actors
    where = f"{cluster.host}, port {cluster.port or 'any'}"
    gpus = agent_gpus(config)
    has = f" with {gpus} GPUs each" if gpus else ""
    by = f", of Ray, {agent_cores(config)} cores each" if cluster.kind == "ray" else ""
    alone = not (cluster.trainer_agents or cluster.reward_agents)
    others = "all others here" if alone else "the coordinator and rank 0 here"
    rows = [
        Row(
            "machines",
            f"{cluster.agents} join{has}{by}",
            f"at {where}: {actors} rollout actors there, {others}",
        )
    ]
    if cluster.trainer_agents:
        here = ranks_here(config)
        gpu = ", with a GPU for each rank" if config.train.device == "cuda" else ""
        split = f"of the trainer's {config.train.ranks} ranks {here} on each{gpu}, and {here} here"
        by = "Ray" if cluster.kind == "ray" else "`asyncrl agent --for trainer`"
        rows.append(Row("trainer machines", f"{cluster.trainer_agents} join", f"by {by}: {split}"))
    if cluster.reward_agents:
        by = "Ray" if cluster.kind == "ray" else "`asyncrl agent --for reward`"
        split = f"by {by}: {config.reward.actors} reward actors there, and none here"
        rows.append(Row("reward machines", f"{cluster.reward_agents} join", split))
    return rows


def _truncated(config: Config) -> str:
    """Description of the treatment of responses cut at their budget."""
    budget, band = config.rollout.max_new_tokens, penalty_band(config.rollout)
    return {
        "keep": f"responses cut at {budget} tokens are trained as they are",
        "mask": f"responses cut at {budget} tokens stay out of the loss, and are compared with",
        "penalize": f"over {budget - band} tokens the reward decreases, by 1 at {budget}",
    }[config.rollout.truncated]


def _step(config: Config) -> list[Row]:
    """Rows about the size of a step."""
    rollout, train = config.rollout, config.train
    least, most = (
        train.batch_groups * rollout.group_size,
        train.batch_groups * max_members(config),
    )
    each = (
        f"{rollout.group_size} to {max_group_size(config)}, as {rollout.sizing} says"
        if max_group_size(config) > rollout.group_size
        else str(rollout.group_size)
    )
    if foreign := config.foreign.most:
        each += f", and ≤ {foreign} foreign answer{'s' if foreign > 1 else ''} each"
    if train.step_tokens:
        return [
            Row("rollouts per step", "by their tokens", f"groups of {each}"),
            Row(
                "response tokens per step",
                f"≥ {train.step_tokens:,}",
                "they close a step, instead of batch_groups",
            ),
        ]
    return [
        Row(
            "rollouts per step",
            f"{'≤ ' if most > least else ''}{most:,}",
            f"{train.batch_groups} groups of {each}",
        ),
        *_kept(config),
        Row(
            "response tokens per step",
            f"≤ {most * rollout.max_new_tokens:,}",
            f"{rollout.max_new_tokens} a rollout",
        ),
    ]


def _curriculum(config: Config) -> Iterator[Row]:
    """A row about the choice of prompts, where it is not each in turn."""
    if config.task.curriculum != "in_order":
        yield Row("curriculum", config.task.curriculum, "chooses the next prompt")


def _kept(config: Config) -> Iterator[Row]:
    """A row about the members of a group that are trained, where a rule chooses them."""
    train, sizes = config.train, (config.rollout.group_size, max_group_size(config))
    if train.keep == "all":
        return
    least, most = (number_kept(count, train.keep_members) for count in sizes)
    each = f"{least} to {most}" if most > least else f"{most}"
    yield Row(
        "rollouts trained",
        f"≤ {train.batch_groups * most:,}",
        f"{each} of each group, chosen by {train.keep}",
    )


def _updates(config: Config) -> list[Row]:
    """A row about several updates of one step."""
    train = config.train
    if one_update(train):
        return []
    if minibatch_rule_of(train).by_turn:
        return [
            Row(
                "updates per step",
                f"1 to {config.agent.max_calls:,}",
                f"one of each turn, in the order of {train.minibatch_by}, all in one version; a "
                "step is computed when it is closed",
            )
        ]
    return [
        Row(
            "updates per step",
            f"{updates(train):,}",
            f"{train.minibatches} minibatches × {train.passes} passes, all in one version; a step "
            "is computed when it is closed",
        )
    ]


def _weighs(config: Config) -> str:
    correction = config.staleness.correction
    if not correction:
        return "no token is left out or weighs less"
    if any(entry.weighs_by_ratio for entry in correction) and ratios_weigh(
        config.train, config.staleness
    ):
        return "kept tokens are weighted by their ratio"
    return (
        "selects tokens; the objective's own ratio weights them"
        if any(entry.rejects for entry in correction)
        else "weighs by age"
    )


def _proximal(config: Config, live: int) -> str:
    """Description of the proximal policy, and of its cost for the trainer."""
    if clips_nothing(config.train, config.staleness):
        return "of the step itself: the ratio is 1, and clipping does nothing"
    return {
        "behaviour": "the policy that the engine sampled from",
        "recompute": "of the step itself",
        "loglinear": "interpolated between behaviour and current",
        "ema": f"the average of the weights (train.ema = {config.train.ema:g}), PPO-EWMA's",
        "snapshot": "of the version that sampled; the trainer's memory holds "
        f"≤ {config.staleness.max_lag} more copies of the weights",
        "boundary": "of the version that sampled; the trainer's memory holds one more copy of the "
        "weights for each version that engines still use, "
        f"≤ {max(1, config.staleness.max_lag)} and mostly 1, and "
        f"≤ {size(4 * live * config.rollout.max_new_tokens)} of scores",
    }[config.staleness.proximal]


def _more(policy: AdmissionPolicy) -> str:
    most = policy.max_live_filtered
    return f"; ≤ {most:,} groups where the filter leaves many out" if most > policy.max_live else ""


def _credited(train: TrainConfig) -> str:
    """The turns' worth and the groups' weights, where they are not as usual."""
    credit = CREDITS.get(train.credit, f", of the credit {train.credit}")
    return credit + (f", groups by {train.group_weight}" if train.group_weight != "none" else "")


def _worst(config: Config, policy: AdmissionPolicy) -> Row:
    """The largest lag of a trained token, and how older ones are treated."""
    name, staleness = "lag, worst", config.staleness
    bounded = staleness.on_stale != "train"
    older = {
        "mask": "older tokens are left out of the loss",
        "restart": "the prompt of older tokens restarts",
        "drop": "the group of older tokens is dropped",
        "train": "old tokens are trained",
    }[staleness.on_stale]
    if (lag := policy.worst_lag) is None:
        return Row(
            name,
            str(staleness.max_lag) if bounded else "no bound",
            f"{older}; no window: the oldest finished first",
        )
    if bounded and lag > staleness.max_lag:
        return Row(name, str(staleness.max_lag), f"{older}; with this window some may be {lag} old")
    return Row(name, str(lag), f"{older}; with this window none is older than {lag}")


def _counts(parts: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(len(part)) for part in parts)


def _slots(slots: int, live: int) -> str:
    return (
        f"{slots - live:,} more than live rollouts, so they stay empty"
        if slots > live
        else "rollouts decoded at a time"
    )


def _records(routing: int | None) -> str:
    """Words on the records of experts, of so many bytes a token."""
    if routing is None:
        return ", without records of experts, whose sizes config.json does not have"
    return f", with {routing:,} bytes for the experts of each sampled token" if routing else ""


def _journal(config: Config) -> str:
    beside = "; filtered, stale and evaluated rollouts come on top"
    if not config.train.checkpoint_every:
        return "never compacted, as train.checkpoint_every is 0: all steps" + beside
    return (
        f"compacted at each checkpoint: {journal_steps(config):,} steps and the live rollouts"
        + beside
    )
