"""Scrapes, read back by Prometheus' own parsers, over HTTP."""

from __future__ import annotations

import math
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience, fold
from asyncrl.explain.metrics import LAGS, Metrics, observe
from asyncrl.messages import NoVerdict, Report, Scored, Wait
from asyncrl.runtime.processes.machine import free_port


def array(count: int, kind: str) -> bytes:
    return np.zeros(count, kind).tobytes()


def extended(rollout: int, count: int, version: int = 0) -> e.Extended:
    return e.Extended(rollout, 1, version, 0, array(count, "<i4"), array(count, "<f4"))


def experience() -> Experience:
    """Two groups of two: in the first one rollout is taken and one had no verdict, in the second
    one is leased and one waits."""
    return fold(
        [
            e.Published(0),
            e.Admitted(0, 0, 2, "train", 0, array(3, "<i4"), 8),
            e.Admitted(1, 2, 2, "train", 1, array(3, "<i4"), 8),
            *(e.Leased(rollout, "rollout-0", 1) for rollout in (0, 1, 2)),
            extended(0, 5),
            extended(1, 4),
            extended(2, 3),
            e.Sealed(0, 1, "stop"),
            e.Sealed(1, 1, "stop"),
            e.Judged(0, Scored(1.0)),
            e.Judged(1, NoVerdict("deadline")),
            e.Taken(0, [0]),
            e.LateTokens(2),
        ]
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def busy(clock: Clock, port: int) -> Iterator[int]:
    """The port of an endpoint of a run in which everything happened."""
    metrics = Metrics(clock=clock)
    metrics.describe(task="spell_backward", model="bundled")
    seen = experience()
    seen.ledger.pruned["pruned_mine"] = 2
    metrics.observed(observe(seen, {0: 10, 3: 4, 40: 1}))
    metrics.stepped(0.5, {"loss": -0.25})
    clock.now += 7
    metrics.evaluated(3, None, {}, 0)  # which the next one replaces
    metrics.evaluated(4, 0.75, {"pass@2": 0.875, "pass@2/math": 0.5}, 12)
    metrics.published(0.2, {0: 0.002, 1: 0.004})
    metrics.judged(Scored(1.0), 0.01)
    metrics.judged(NoVerdict("raised: ValueError: 'x'\n"), 0.3)
    metrics.reported(
        "rollout",
        0,
        Report(1.0, {"leases": 0.25}, {"tokens": 12}, [Wait("leases", "rollout-0", 0.1, 5.0)]),
    )
    metrics.reported("rollout", 0, Report(1.0, {"leases": 0.5}, {"tokens": 3}, []))
    metrics.reported("trainer", 0, Report(1.0, {"micro_batch": 0.125}, {}, []))
    metrics.refused("key: from 10.0.0.1")
    metrics.restarted("rollout")
    metrics.removed("rollout")
    metrics.garbled("nan")
    metrics.alarmed(["masked_icepop", "ess"])
    with metrics.serve(port):
        yield port


def scrape(port: int, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=60
    ) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    """Value by name and label values."""
    found: dict[tuple[str, frozenset[str]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.values()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def test_what_happened_is_what_a_scrape_says(busy: int) -> None:
    found = samples(scrape(busy))
    expected = {
        ("asyncrl_tokens_generated_total",): 14,
        ("asyncrl_tokens_trained_total",): 0,
        ("asyncrl_tokens_discarded_total", "late"): 2,
        ("asyncrl_tokens_discarded_total", "no_verdict"): 4,
        ("asyncrl_tokens_live",): 8,
        ("asyncrl_rollouts_admitted_total",): 4,
        ("asyncrl_foreign_tokens_imported_total",): 0,
        ("asyncrl_rollouts_trained_total",): 0,
        ("asyncrl_rollouts_discarded_total", "no_verdict"): 1,
        ("asyncrl_rollouts_pruned_total", "pruned_mine"): 2,
        ("asyncrl_rollouts", "waiting"): 1,
        ("asyncrl_rollouts", "leased"): 1,
        ("asyncrl_rollouts", "sealed"): 0,
        ("asyncrl_rollouts", "judged"): 0,
        ("asyncrl_rollouts", "taken"): 1,
        ("asyncrl_groups", "open"): 1,
        ("asyncrl_groups", "complete"): 0,
        ("asyncrl_groups", "taken"): 1,
        ("asyncrl_queue_items",): 0,
        ("asyncrl_queue_bytes",): 0,
        ("asyncrl_version",): 0,
        ("asyncrl_lag_versions_count",): 15,
        ("asyncrl_lag_versions_sum",): 52,
        ("asyncrl_step_seconds_count",): 1,
        ("asyncrl_step_seconds_sum",): 0.5,
        ("asyncrl_training", "loss"): -0.25,
        ("asyncrl_accuracy_ratio",): 0.75,
        ("asyncrl_accuracy_version",): 4,
        ("asyncrl_accuracy_prompts",): 12,
        ("asyncrl_evaluation_ratio", "pass@2", ""): 0.875,
        ("asyncrl_evaluation_ratio", "pass@2", "math"): 0.5,
        ("asyncrl_publication_seconds_sum",): 0.2,
        ("asyncrl_pause_seconds_sum", "1"): 0.004,
        ("asyncrl_verdict_seconds_sum", "no_verdict"): 0.3,
        ("asyncrl_verdict_seconds_count", "scored"): 1,
        ("asyncrl_no_verdicts_total", "raised"): 1,
        ("asyncrl_idle_seconds_total", "rollout", "0", "leases"): 0.75,
        ("asyncrl_idle_seconds_total", "trainer", "0", "micro_batch"): 0.125,
        ("asyncrl_work_total", "rollout", "0", "tokens"): 15,
        ("asyncrl_waits", "rollout", "0"): 0,
        ("asyncrl_refused_connections_total", "key"): 1,
        ("asyncrl_restarts_total", "rollout"): 1,
        ("asyncrl_removed_total", "rollout"): 1,
        ("asyncrl_bad_chunks_total", "nan"): 1,
        ("asyncrl_alarm", "masked_icepop"): 1,
        ("asyncrl_alarm", "ess"): 1,
        ("asyncrl_since_last_step_seconds",): 7,
        ("asyncrl_run_info", "spell_backward", "bundled"): 1,
    }
    for (name, *labels), value in expected.items():
        assert found[name, frozenset(labels)] == pytest.approx(value), (name, labels)


def test_the_lag_histogram_is_cumulative(busy: int) -> None:
    families = {family.name: family for family in text_string_to_metric_families(scrape(busy))}
    buckets = {
        s.labels["le"]: s.value
        for s in families["asyncrl_lag_versions"].samples
        if s.name.endswith("_bucket")
    }
    lags = [0] * 10 + [3] * 4 + [40]
    assert buckets == {**{str(float(b)): sum(lag <= b for lag in lags) for b in LAGS}, "+Inf": 15}


def test_names_and_labels_follow_the_conventions(busy: int) -> None:
    allowed = {
        "reason",
        "state",
        "role",
        "actor",
        "cause",
        "kind",
        "name",
        "outcome",
        "le",
        "task",
        "model",
    }
    for family in text_string_to_metric_families(scrape(busy)):
        assert re.fullmatch(r"asyncrl_[a-z_]+", family.name) and family.documentation.endswith(
            "."
        ), family.name
        assert not re.search(r"_(ms|milliseconds|minutes|mb|kib|percent)\b", family.name)
        for sample in family.samples:
            assert set(sample.labels) <= allowed, sample
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created")), sample
            else:
                assert not sample.name.endswith("_total"), sample


def test_the_strict_openmetrics_parser_takes_it(busy: int) -> None:
    text = scrape(busy, "application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    names = {family.name for family in openmetrics.text_string_to_metric_families(text)}
    assert {"asyncrl_tokens_generated", "asyncrl_lag_versions", "asyncrl_run"} <= names


def test_a_scrape_before_anything_happened(port: int) -> None:
    with Metrics().serve(port):
        found = samples(scrape(port))
    assert found["asyncrl_since_last_step_seconds", frozenset()] >= 0 and "asyncrl_version" not in {
        name for name, _ in found
    }


def test_leases_the_journal_and_the_loop_are_seen(clock: Clock) -> None:
    metrics = Metrics(clock=clock)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    assert math.isnan(value("asyncrl_lease_tail_seconds") or 0.0)
    metrics.leasing(None, 600.0)
    assert (
        math.isnan(value("asyncrl_lease_tail_seconds") or 0.0)
        and value("asyncrl_lease_deadline_seconds") == 600.0
    )
    metrics.leasing(2.5, 30.0)
    metrics.journalled(4096, 17)
    metrics.pumped(0.25)
    assert (value("asyncrl_lease_tail_seconds"), value("asyncrl_lease_deadline_seconds")) == (
        2.5,
        30.0,
    )
    assert (value("asyncrl_journal_bytes"), value("asyncrl_journal_pending_bytes")) == (4096, 17)
    assert value("asyncrl_pump_seconds") == 0.25


def test_episodes_are_seen_by_who_has_them() -> None:
    metrics = Metrics()
    metrics.playing(64, 41, 80)
    found = {
        state: metrics.registry.get_sample_value("asyncrl_episodes", {"state": state})
        for state in ("live", "thinking", "most")
    }
    assert found == {"live": 64, "thinking": 41, "most": 80}


def test_an_alarm_is_there_by_its_cause_until_a_step_is_well(port: int) -> None:
    metrics = Metrics()

    def scraped() -> set[str]:
        found = {
            tuple(labels): value
            for (name, labels), value in samples(scrape(port)).items()
            if name == "asyncrl_alarm"
        }
        assert set(found.values()) <= {1.0}
        return {cause for (cause,) in found}

    with metrics.serve(port):
        assert scraped() == set()
        metrics.alarmed(["staleness", "ess"])
        assert scraped() == {"staleness", "ess"}
        metrics.alarmed(["ess", "masked_k3"])
        assert scraped() == {"ess", "masked_k3"}, "what the last step did not raise is over"
        metrics.alarmed([])
        assert scraped() == set()


def test_how_far_training_is_from_generation_is_scraped(port: int) -> None:
    """Of four complete rollouts of 1, 1, 2 and 2 tokens, the two short ones are trained."""
    events: list[e.AnyEvent] = [e.Published(0), e.Admitted(0, 0, 2, "train", 0, array(3, "<i4"), 8)]
    events.append(e.Admitted(1, 2, 2, "train", 1, array(3, "<i4"), 8))
    for rollout, count in enumerate((1, 1, 2, 2)):
        events += [
            e.Leased(rollout, "rollout-0", 1),
            extended(rollout, count),
            e.Sealed(rollout, 1, "stop"),
        ]
        events.append(e.Judged(rollout, Scored(float(rollout % 2))))
    metrics = Metrics()
    with metrics.serve(port):
        metrics.observed(observe(fold(events), {}))
        assert not [name for name, _ in samples(scrape(port)) if name == "asyncrl_bias"], (
            "nothing is trained yet"
        )
        events += [e.Taken(0, [0, 1]), e.Trained(0, 1, {}), e.Trained(1, 1, {})]
        metrics.observed(observe(fold(events), {}))
        found = {
            label: value
            for (name, labels), value in samples(scrape(port)).items()
            if name == "asyncrl_bias"
            for label in labels
        }
    assert found == {
        "length": 0.5,
        "length_mean": pytest.approx(1 / 1.5),
        **dict.fromkeys(("age", "attempts", "version"), 0.0),
        **{f"{name}_mean": 1.0 for name in ("age", "attempts", "version")},
    }


def test_an_observation_does_not_change_with_the_heart() -> None:
    heart = experience()
    seen = observe(heart, {})
    before = (seen.tokens.total, dict(seen.tokens.discarded), dict(seen.states))
    heart.apply(e.LateTokens(9))
    heart.apply(e.Buried(3, "attempts"))
    assert (seen.tokens.total, dict(seen.tokens.discarded), dict(seen.states)) == before
    assert observe(heart, {}).tokens.discarded == {"late": 11, "no_verdict": 4}


def test_the_endpoint_lives_as_long_as_the_run(port: int) -> None:
    metrics = Metrics()
    for _ in range(2):  # the port is free again at once
        with metrics.serve(port):
            assert scrape(port)
        with pytest.raises(urllib.error.URLError):
            scrape(port)


def test_port_0_is_off() -> None:
    with Metrics().serve(0):
        pass


def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"), Metrics().serve(other.getsockname()[1]):
            pass


def test_reasons_cannot_make_series_without_end() -> None:
    metrics = Metrics()
    for i in range(1000):
        metrics.refused(f"reason {i}")
        metrics.judged(NoVerdict(f"same: detail {i}"), 0.0)
    found: list[Sample] = [
        sample for family in metrics.registry.collect() for sample in family.samples
    ]
    refused = {
        s.labels["reason"]: s.value for s in found if s.name == "asyncrl_refused_connections_total"
    }
    assert len(refused) == 33 and sum(refused.values()) == 1000 and refused["other"] == 968
    assert [s.value for s in found if s.name == "asyncrl_no_verdicts_total"] == [1000]


def test_a_label_has_sixty_characters_of_a_name() -> None:
    metrics = Metrics()
    metrics.refused("x" * 61)
    name = "asyncrl_refused_connections_total"
    assert metrics.registry.get_sample_value(name, {"reason": "x" * 60}) == 1
    assert metrics.registry.get_sample_value(name, {"reason": "x" * 61}) is None
