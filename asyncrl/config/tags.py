"""Tags: what a rollout actor's machine or server is good at, by a name of the user's.

    rollout.needs   the tag of each rollout actor: it starts only on a machine that has it
    task.prefers    the tag of the actors that a task's prompts go to first

Invariant: what prompts prefer, an actor has. Roles are no tags: machines join for them (`--for`).
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.config.cluster import joined
from asyncrl.config.mix import members
from asyncrl.config.schema import Config
from asyncrl.config.schema.section import Contradictions
from asyncrl.config.setting import quoted


def need_of(config: Config, index: int) -> str:
    """The tag that a rollout actor needs; empty if it needs none.

    >>> config = Config(rollout={"actors": 3, "needs": ("long_prefill", "")})
    >>> [need_of(config, index) for index in range(3)]
    ['long_prefill', '', '']
    """
    needs = config.rollout.needs
    return needs[index] if index < len(needs) else ""


def actors_by_tag(config: Config) -> dict[str, list[str]]:
    """The names of the rollout actors that have each tag."""
    found = dict[str, list[str]]()
    for index, tag in enumerate(config.rollout.needs):
        if tag:
            found.setdefault(tag, []).append(f"rollout-{index}")
    return found


def preferred_tags(config: Config) -> Mapping[str, str]:
    """The tag that each task's prompts prefer, by the task's label, which is empty where there is
    one task; without those that prefer none."""
    tasks = members(config.task) or {"": config.task}
    return {label: task.prefers for label, task in tasks.items() if task.prefers}


def tag_rows(config: Config) -> list[tuple[str, str, str]]:
    """A row of `check` for each tag: the actors that have it, and the prompts that prefer them."""
    preferring = preferred_tags(config)
    where = ", on a machine with this tag" if joined(config) else ""
    rows = []
    for tag, actors in actors_by_tag(config).items():
        labels = [label for label, preferred in preferring.items() if preferred == tag]
        of = f"prompts of {', '.join(labels)}" if any(labels) else "all prompts"
        first = f"{of} go there first" if labels else "no prompt prefers it"
        rows.append(("tag", tag, f"{', '.join(actors)}{where}; {first}"))
    return rows


def tag_contradictions(config: Config) -> Contradictions:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    rollout = config.rollout
    if len(rollout.needs) > rollout.actors:
        yield (
            ("rollout.needs", "rollout.actors"),
            "there are more needs than actors: raise actors, or remove the last needs",
        )
        return
    had = actors_by_tag(config)
    if had and config.cluster.kind == "ray":
        yield (
            ("rollout.needs", "cluster.kind"),
            "the agents that Ray starts have no tags: set kind to agents, or remove needs",
        )
    for label, tag in preferred_tags(config).items():
        if tag not in had:
            of = f"the task {label!r} prefers {quoted(tag)}, and " if label else ""
            has = f"actors have {', '.join(sorted(had))}" if had else "no actor has a tag"
            yield (
                ("task.mix" if label else "task.prefers", "rollout.needs"),
                f"{of}{has}: add {quoted(tag)} to needs, or remove prefers",
            )
