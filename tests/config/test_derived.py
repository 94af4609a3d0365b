"""Consequences of the settings, against numbers worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from asyncrl.config import load
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.derived import derived, size
from asyncrl.config.flow import admission_policy
from asyncrl.config.journal_size import EVENT_BYTES, LOG_BYTES, journal_bytes, queue_bytes, steps
from asyncrl.experience import events as e
from asyncrl.journal.sqlite import WAL_BYTES
from asyncrl.messages import Scored


def table(*sets: str, available: int = 2) -> dict[str, tuple[str, str]]:
    return {row.name: (row.value, row.meaning) for row in derived(load(None, sets, {}), available)}


def test_numbers_of_a_small_run() -> None:
    config = load(
        None,
        [
            "train.batch_groups=3",
            "rollout.group_size=4",
            "staleness.depth=2",
            "engine.context_tokens=100",
            "rollout.max_new_tokens=40",
        ],
        {},
    )
    assert admission_policy(config).max_live == 9
    assert admission_policy(config).max_live_filtered == 15, (
        "so many can be trained within a max_lag of 4, if all that are started for filtered ones "
        "pass"
    )
    assert queue_bytes(config) == 15 * 4 * (
        100 * 4 + 40 * 4
    )  # ids of the context, log-probabilities of the response


def test_records_of_experts_are_counted() -> None:
    """In the queue once for each sampled token; in the journal also with its chunk."""
    sets = ["engine.context_tokens=100", "rollout.max_new_tokens=40", "train.steps=3"]
    config = load(None, [*sets, "train.checkpoint_every=0"], {})
    live = admission_policy(config).max_live_filtered * config.rollout.group_size
    assert queue_bytes(config, 6) - queue_bytes(config) == live * 40 * 6
    trained = 3 * config.train.batch_groups * config.rollout.group_size
    assert journal_bytes(config, 6) - journal_bytes(config) == (trained + 5 * live) * 40 * 6
    rows = {row.name: row for row in derived(config, 2, 6)}
    assert rows["queue"].value == f"≤ {size(queue_bytes(config, 6))}"
    assert "6 bytes for the experts of each sampled token" in rows["queue"].meaning
    unknown = {row.name: row for row in derived(config, 2, None)}
    assert "without records of experts" in unknown["queue"].meaning


def test_the_table_says_what_follows() -> None:
    rows = table(
        "train.steps=7",
        "rollout.actors=3",
        "engine.slots=10",
        "staleness.depth=2",
        "metrics.port=9100",
    )
    assert rows["slots"][0] == "30"
    assert rows["rollouts per step"] == ("128", "16 groups of 8")
    assert rows["response tokens per step"][0] == "≤ 4,096"
    assert rows["groups live"][0] == "≤ 48"
    assert rows["steps at most"][0] == "7"
    assert (rows["lag, typical"][0], rows["lag, worst"][0]) == ("2", "4")
    assert rows["metrics"][0] == "http://127.0.0.1:9100/metrics"


def test_foreign_answers_count_where_rollouts_do() -> None:
    more = ["foreign.source=pool", "foreign.members=3"]
    plain, rows = load(None, [], {}), table(*more)
    assert rows["rollouts per step"] == ("≤ 176", "16 groups of 8, and ≤ 3 foreign answers each")
    assert rows["response tokens per step"][0] == "≤ 5,632"
    assert queue_bytes(load(None, more, {})) == queue_bytes(plain) * 11 // 8
    assert journal_bytes(load(None, more, {})) > journal_bytes(plain)


@pytest.mark.parametrize(
    ("every", "steps_", "held", "said"),
    [
        (10, 100, 20, "compacted at each checkpoint: 20 steps and the live rollouts"),
        (10, 15, 15, "compacted at each checkpoint: 15 steps"),
        (0, 100, 100, "never compacted, as train.checkpoint_every is 0: all steps"),
    ],
)
def test_the_journal_holds_two_checkpoint_intervals(
    every: int, steps_: int, held: int, said: str
) -> None:
    sets = [
        "train.batch_groups=3",
        "rollout.group_size=4",
        "staleness.depth=0",
        "engine.context_tokens=100",
        "rollout.max_new_tokens=40",
    ]
    sets += ["engine.chunk_tokens=16", f"train.checkpoint_every={every}", f"train.steps={steps_}"]
    rollout = (
        40 * 8 + (3 + 4) * 40
    )  # tokens; and a head for each of 3 chunks, its lease, seal, verdict and end
    # As many groups as may be started where a filter leaves many out: tokens as events, in three
    # states, and one of those in the log.
    live = 12 * 4 * (100 * 4 + 40 * 4)
    assert (
        journal_bytes(load(None, sets, {}))
        == held * 3 * (4 * rollout + 100 * 4) + 5 * live + LOG_BYTES
    )
    value, meaning = table(*sets)["journal"]
    assert value == f"≤ {size(journal_bytes(load(None, sets, {})))}"
    assert meaning.startswith(said) and meaning.endswith(
        "; filtered, stale and evaluated rollouts come on top"
    )


def test_an_event_takes_no_more_beside_its_tokens_than_is_said() -> None:
    """Of a long run, with many actors."""
    assert LOG_BYTES == WAL_BYTES
    rollout, owner = 10**9, "rollout-999"
    for event, tokens in (
        (e.Extended(rollout, 3, 60_000, 60_000, bytes(4 * 999), bytes(4 * 999)), 999),
        (e.Leased(rollout, owner, 3), 0),
        (e.Sealed(rollout, 3, "length"), 0),
        (e.Judged(rollout, Scored(0.5)), 0),
        (e.Trained(rollout, 60_000, {}), 0),
    ):
        assert len(msgspec.msgpack.encode(event)) - 8 * tokens <= EVENT_BYTES


def test_slots_that_stay_empty_are_said() -> None:
    assert table("engine.slots=300")["slots"] == (
        "300",
        "44 more than live rollouts, so they stay empty",
    )


def test_training_on_stale_tokens_has_no_worst_lag() -> None:
    assert table("staleness.on_stale=train")["lag, worst"][0] == "no bound"


@pytest.mark.parametrize(
    ("epochs", "size_", "expected"), [(0, 4, 9), (1, 4, 2), (1, 5, 3), (2, 5, 5), (50, 5, 9)]
)
def test_the_data_may_end_the_run(epochs: int, size_: int, expected: int) -> None:
    assert (
        steps(
            load(
                None,
                [
                    f"task.epochs={epochs}",
                    f"task.train_size={size_}",
                    "train.steps=9",
                    "train.batch_groups=2",
                ],
                {},
            )
        )
        == expected
    )


@pytest.mark.parametrize(
    ("sets", "available", "said"),
    [
        ([], 1, ("1 of 1", "trainer 1; rollout actors 1")),
        ([], 2, ("2 of 2", "trainer 1; rollout actors 1")),
        (
            ["machine.cores=8", "machine.trainer_cores=3", "rollout.actors=2"],
            64,
            ("8 of 64", "trainer 3; rollout actors 2, 3"),
        ),
    ],
)
def test_cores_are_said_as_the_launcher_divides_them(
    sets: list[str], available: int, said: tuple[str, str]
) -> None:
    assert table(*sets, available=available)["cores"] == said


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (0, 1023, 1024, 3 * 2**20, 5 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5,120.0 GiB",
    ]


@pytest.mark.parametrize(
    ("actors", "slots", "tokens"),
    [
        (1, 1, 8),
        (2, 64, 8),
        (8, 64, 8),  # 512 slots, of which each decode step gives 64 chunks
        (9, 57, 16),  # 513 slots
        (8, 256, 32),
        (64, 256, 256),
        (1000, 256, 256),
    ],
)
def test_the_more_slots_the_longer_is_a_chunk(actors: int, slots: int, tokens: int) -> None:
    sets = [f"rollout.actors={actors}", f"engine.slots={slots}"]
    assert chunk_tokens(load(None, sets, {})) == tokens
    assert chunk_tokens(load(None, [*sets, "engine.chunk_tokens=3"], {})) == 3


def test_an_agent_is_told_what_the_bundled_model_knows() -> None:
    agent = "agent.run=http"
    assert table()["model"][1] == table(agent, "model.path=org/name")["model"][1]
    assert "it knows only the task's bare prompts: for an agent" in table(agent)["model"][1]
    assert "it knows nothing yet" in table(agent, "task.name=seeds")["model"][1]
