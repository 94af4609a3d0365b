"""Alert rules and dashboard against what a run exports: by name, by Prometheus's own tool, and on a
real run that a real Prometheus scrapes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from train_support import (
    command,
    end,
    processes,
    started,
    steps_done,
    tiny_model,
    wait_for,
)

from asyncrl.experience.experience import Experience
from asyncrl.explain.metrics import Metrics, observe

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docker" / "alerts.yaml"
PAGE = ROOT / "docs" / "alerts.md"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
SCRAPE_S = 1
FIRES: dict[str, list[tuple[str, str]]] = {
    "AsyncrlGone": [('up{job="asyncrl"}', "0x40")],
    "AsyncrlStandsStill": [("asyncrl_since_last_step_seconds", "0+60x40")],
    "AsyncrlAlarm": [('asyncrl_alarm{cause="k3"}', "1x40")],
    "AsyncrlTrainerIdle": [
        ('asyncrl_idle_seconds_total{role="trainer",actor="0",cause="a"}', "0+18x40"),
        ('asyncrl_idle_seconds_total{role="trainer",actor="0",cause="b"}', "0+18x40"),
    ],
    "AsyncrlEnginesIdle": [
        ('asyncrl_idle_seconds_total{role="rollout",actor="0",cause="leases"}', "0+20x40"),
        ('asyncrl_idle_seconds_total{role="rollout",actor="1",cause="leases"}', "0+50x40"),
    ],
    "AsyncrlRestarts": [('asyncrl_restarts_total{role="rollout"}', "0+1x40")],
    "AsyncrlRemoved": [('asyncrl_removed_total{role="rollout"}', "0x10 1x30")],
    "AsyncrlNoVerdicts": [
        ('asyncrl_no_verdicts_total{reason="raised"}', "0+20x40"),
        ('asyncrl_verdict_seconds_count{outcome="scored"}', "0+100x40"),
    ],
    "AsyncrlRefused": [('asyncrl_refused_connections_total{reason="key"}', "0+2x40")],
    "AsyncrlJournalBehind": [("asyncrl_journal_pending_bytes", "1e8x40")],
    "AsyncrlDisk": [('asyncrl_alarm{cause="checkpoint_unwritten"}', "0x29 1x10")],
}
"""Series, one value a minute, at which each alert fires."""
QUIET: dict[str, list[tuple[str, str]]] = {
    "AsyncrlGone": [('up{job="asyncrl"}', "1x40"), ('up{job="sglang"}', "0x40")],
    "AsyncrlStandsStill": [("asyncrl_since_last_step_seconds", "590x40")],
    "AsyncrlAlarm": [('asyncrl_alarm{cause="k3"}', "1 0 1 0 1 0 1 0 1 0 1x5 0x25")],
    "AsyncrlTrainerIdle": [
        ('asyncrl_idle_seconds_total{role="trainer",actor="0",cause="a"}', "0+17x40"),
        ('asyncrl_idle_seconds_total{role="rollout",actor="0",cause="a"}', "0+60x40"),
    ],
    "AsyncrlEnginesIdle": [
        ('asyncrl_idle_seconds_total{role="rollout",actor="0",cause="leases"}', "0+10x40"),
        ('asyncrl_idle_seconds_total{role="rollout",actor="1",cause="leases"}', "0+20x40"),
    ],
    "AsyncrlRestarts": [('asyncrl_restarts_total{role="rollout"}', "0x10 3x30")],
    "AsyncrlRemoved": [('asyncrl_removed_total{role="rollout"}', "0x40")],
    "AsyncrlNoVerdicts": [
        ('asyncrl_no_verdicts_total{reason="raised"}', "0+9x40"),
        ('asyncrl_verdict_seconds_count{outcome="scored"}', "0+100x40"),
    ],
    "AsyncrlRefused": [('asyncrl_refused_connections_total{reason="key"}', "0x10 5x30")],
    "AsyncrlJournalBehind": [("asyncrl_journal_pending_bytes", "6e7x40")],
    "AsyncrlDisk": [
        ('asyncrl_alarm{cause="stale"}', "1x40"),
        ('asyncrl_alarm{cause="journal_waits"}', "1x20 0x20"),
    ],
}
"""Series at which it does not, though they come near."""
RARE = re.compile(
    r"asyncrl_(alarm|restarts|removed|no_verdicts|bad_chunks|refused|waits|episodes|evaluation)"
    r'|role="agents"'
)
"""Metrics that have a value once it has happened."""


def rules() -> list[dict[str, Any]]:
    found = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert all(isinstance(rule, dict) for rule in found)
    return found


def dashboard() -> dict[str, Any]:
    found = json.loads((ROOT / "docker" / "grafana" / "asyncrl.json").read_text())
    assert isinstance(found, dict)
    return found


def queries() -> list[str]:
    """The dashboard's queries as Grafana sends them."""
    chosen = {"$job": "asyncrl", "$devices": "8", "$price": "2", "$__range_s": "3600"}
    found = [each["expr"] for panel in dashboard()["panels"] for each in panel.get("targets", ())]
    for name, value in {**chosen, "$__range": "1h", ',instance="$run"': ""}.items():
        found = [expression.replace(name, value) for expression in found]
    assert not any("$" in expression for expression in found)
    return found


def panels() -> list[str]:
    """The dashboard's queries of the run itself."""
    return [query for query in queries() if not re.search("sglang|DCGM", query)]


BESIDE = re.compile(
    r"sglang:(weight_load_duration_seconds|generation_tokens_total|num_running_reqs|num_queue_reqs"
    r"|num_paused_reqs|token_usage|cache_hit_rate|num_aborted_requests_total)"
    r"|DCGM_FI_DEV_(GPU_UTIL|FB_USED|POWER_USAGE|GPU_TEMP)|up"
)
"""Metrics of SGLang's servers, NVIDIA's exporter and Prometheus."""


def test_every_panel_names_metrics_that_exist_and_says_what_it_shows() -> None:
    """Those of one run alone, by the variables. Names are those that the run exports."""
    metrics = Metrics()
    metrics.observed(msgspec.structs.replace(observe(Experience(), {}), version=3))
    exported = {
        family.name + suffix
        for family in metrics.registry.collect()
        for suffix in {
            "counter": ("_total",),
            "histogram": ("_bucket", "_count", "_sum"),
            "info": ("_info",),
        }.get(family.type, ("",))
    }
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 5 and panel["targets"], panel["title"]
        for target in panel["targets"]:
            expression = target["expr"]
            bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\b(by|on) \([^)]*\)', "", expression)
            names = re.findall(r"\b(?:asyncrl_\w+|sglang:\w+|DCGM_\w+|up)\b", bare)
            assert names, expression
            for name in names:
                ours = name.startswith("asyncrl")
                assert name in exported if ours else BESIDE.fullmatch(name), (panel["title"], name)
            assert expression.count('job="$job",instance="$run"') == sum(
                name.startswith("asyncrl") or (name == "up" and "avg" in bare) for name in names
            ), expression


def test_the_dashboard_has_its_variables_and_no_panel_over_another() -> None:
    found = dashboard()
    assert [each["name"] for each in found["templating"]["list"]] == [
        "job",
        "run",
        "devices",
        "price",
    ]
    rows = [panel["title"] for panel in found["panels"] if panel["type"] == "row"]
    assert {"Now", "Agents and verdicts", "GPUs", "Cost"} <= set(rows)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in found["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


def test_each_alert_has_its_lines_in_the_runbook_and_a_case() -> None:
    titles = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in rules()] == titles
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(titles) == FIRES.keys() == QUIET.keys()


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool here (Debian: prometheus)")
@pytest.mark.parametrize(("cases", "fires"), [(FIRES, True), (QUIET, False)])
def test_each_alert_fires_when_it_should_and_not_before(
    tmp_path: Path, cases: dict[str, list[tuple[str, str]]], fires: bool
) -> None:
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
                    "eval_time": "30m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
            ],
        }
        for alert, series in cases.items()
    ]
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A real one, which scrapes a port of this machine; its address."""
    config = yaml.safe_load((ROOT / "docker" / "prometheus.yaml").read_text())
    run = config["scrape_configs"][0]
    run["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    config |= {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "1s"},
        "scrape_configs": [run],
        "rule_files": [str(RULES)],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            str(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def asked(address: str, path: str, **query: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return found["data"]


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus here (Debian: prometheus)")
def test_every_panel_and_alert_has_data_of_a_real_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model, run = tiny_model(tmp_path / "model"), tmp_path / "run"
    argv = command(model, run, train__steps=10_000, metrics__port=port, train__eval_every=2)
    with prometheus(tmp_path, port) as address, started(argv) as process:

        def answers() -> bool:
            try:
                return bool(
                    asked(address, "query", query="asyncrl_step_seconds_count > 0")["result"]
                )
            except OSError:
                return False

        wait_for("scraped steps", answers)
        wait_for("steps", lambda: steps_done(run) >= 8)
        wait_for("scrapes", lambda: len(series(address)) > 0)
        for expression in panels():
            found = wait_for(
                f"answer to {expression}",
                lambda expression=expression: (
                    asked(address, "query", query=expression.replace("$__rate_interval", "1m"))[
                        "result"
                    ]
                    or RARE.search(expression)
                ),
            )
            assert found, expression
        loaded = asked(address, "rules")["groups"][0]["rules"]
        assert [rule["name"] for rule in loaded] == [rule["alert"] for rule in rules()]
        assert all(rule["health"] == "ok" for rule in loaded), loaded
        for rule in rules():
            names = set(re.findall(r"\basyncrl_\w+|\bup\b", rule["expr"]))
            there = {each["__name__"] for each in series(address)}
            missing = {name for name in names - there if not RARE.match(name)}
            assert not missing, (rule["alert"], missing)
        process.send_signal(signal.SIGTERM)
        end(process)
    assert not processes(run)


def series(address: str) -> list[dict[str, str]]:
    """All series of the run that were scraped."""
    found = asked(address, "series", **{"match[]": '{job="asyncrl"}'})
    assert isinstance(found, list)
    return found
