"""vLLM servers as children of a run: their command, a whole run with real ones, one of which is
killed, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from adapter_runs import check_adapters
from real_vllm import START_S, launch
from served_families import FAMILIES, KINDS, built
from train_support import command as train_command
from train_support import (
    end,
    processes,
    processes_with,
    resume,
    started,
    steps_done,
    tiny_moe,
    train,
    wait_for,
)

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.engines.servers.errors import ServerGone
from asyncrl.engines.servers.server_process import AdapterRoom, ServerLaunch
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.engines.vllm.vllm_launch import WORKER, address, command, environment, managed
from asyncrl.explain import run_status, summary
from asyncrl.runtime.run_dir import SERVERS, STATUS, SUMMARY


def test_the_command_of_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = ServerLaunch(
        ("/python",),
        "/m",
        "bfloat16",
        "cuda",
        128,
        4096,
        chunk_tokens=16,
        tensor_parallel=4,
        seed=7,
        arguments=("--gpu-memory-utilization", "0.8"),
    )
    words = command(cuda, address(Path("/tmp/x")), Path())
    assert words[:3] == ["/python", "-m", "vllm.entrypoints.openai.api_server"]
    pairs = dict(pairwise(words))
    expected = {
        "model": "/m",
        "uds": "/tmp/x/server.sock",
        "dtype": "bfloat16",
        "tensor-parallel-size": "4",
        "max-num-seqs": "129",
        "max-model-len": "4096",
        "stream-interval": "16",
        "seed": "7",
        "logprobs-mode": "processed_logprobs",
    }
    assert all(pairs[f"--{name}"] == value for name, value in expected.items())
    assert json.loads(pairs["--weight-transfer-config"]) == {"backend": "asyncrl"}
    assert not {"--port", "--enforce-eager", "--num-gpu-blocks-override"} & set(words)
    routing = command(msgspec.structs.replace(cuda, routing=True), address(Path("/tmp/x")), Path())
    assert set(routing) - set(words) == {
        "--enable-return-routed-experts",
        "--enable-prefix-caching",
    }
    adapted = msgspec.structs.replace(cuda, adapters=AdapterRoom(12, ("q_proj",), 9))
    pairs = dict(pairwise(command(adapted, address(Path("/tmp/x")), Path())))
    room = [pairs[f"--{name}"] for name in ("max-lora-rank", "max-loras", "max-cpu-loras")]
    assert room == ["16", "9", "18"] and "--enable-lora" in pairs
    assert pairs["--lora-target-modules"] == "q_proj", "and not the output layer"
    allowed = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    assert environment(adapted)[allowed] == "1" and allowed not in environment(cuda)
    assert words[-2:] == ["--gpu-memory-utilization", "0.8"], "what the user adds wins"
    assert not {"OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE"} & set(environment(cuda))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = environment(msgspec.structs.replace(cuda, gpus=(1, 2)))
    assert found["CUDA_VISIBLE_DEVICES"] == "5,6" and found["PYTHONPATH"] == f"{WORKER}:/mine"
    assert [path.name for path in WORKER.glob("*.py")] == ["asyncrl_receiver.py"]
    assert environment(launch(Path("/m")))["TORCH_COMPILE_DISABLE"] == "1"
    hybrid = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    for config, blocks in (
        ("", "21"),
        ("[]", "21"),
        ('{"kv_lora_rank": 512}', "161"),
        (json.dumps(hybrid), "81"),
        (json.dumps({"text_config": hybrid}), "81"),
    ):
        (tmp_path / "config.json").write_text(config)
        cpu = command(launch(tmp_path), address(Path("/tmp/x")), Path())
        assert "--enforce-eager" in cpu
        assert dict(pairwise(cpu))["--num-gpu-blocks-override"] == blocks


GUARD = "asyncrl.engines.servers.guarded_command"
ASKED = """
import os, socket, sys
path = sys.argv[sys.argv.index('--uds') + 1]
folder = os.path.dirname(path)
print(oct(os.stat(folder).st_mode & 0o777), folder, flush=True)
sys.exit(3)
"""


@pytest.mark.processes
async def test_a_server_listens_where_no_other_user_can_ask_it(tmp_path: Path) -> None:
    stands_in = ServerLaunch((sys.executable, "-c", ASKED), "/m", "float32", "cpu", 2, 64)
    with pytest.raises(ServerGone, match=r"(?s)ended with status 3.*0o700"):
        async with managed(stands_in, log=tmp_path / "log"):
            raise AssertionError("it was never ready")
    folder = Path((tmp_path / "log").read_text().split()[1])
    assert not await trio.Path(folder).exists()


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(START_S + 120)
async def test_a_server_that_is_killed_is_noticed_and_leaves_nothing(
    vllm_python: Path, vllm_model: Path, tmp_path: Path
) -> None:
    async with managed(launch(vllm_model), log=tmp_path / "log", ready_s=START_S) as server:
        folder, ours = Path(server.socket).parent, session(server.process.pid)
        assert len(ours) >= 3, "the server has an engine core and a worker of their own"
        async with VllmClient.open(server.url, socket=server.socket) as client:
            assert await client.ready()
        os.kill(ours[1], signal.SIGKILL)  # the server: the first is the guard of its command
        with trio.fail_after(90), pytest.raises(ServerGone, match="was ended by SIGKILL"):
            await server.watch()
    assert not session(ours[0]) and not await trio.Path(folder).exists()


def session(pid: int) -> list[int]:
    """The living processes of its session, the oldest first."""
    asked = ["ps", "-o", "pid=,stat=", "-s", str(pid)]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = [line.split() for line in listed.stdout.splitlines()]
    return sorted(int(one) for one, state in lines if not state.startswith("Z"))


@pytest.mark.soak  # a run of SGLang's is in CI
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(2 * START_S)
def test_a_server_decodes_with_adapters_beside_its_base(
    vllm_launch: tuple[str, ...], tmp_path: Path
) -> None:
    check_adapters("vllm", vllm_launch, tmp_path)


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(2 * START_S)
def test_a_run_decodes_in_a_server_that_is_given_each_version(
    vllm_launch: tuple[str, ...], tmp_path: Path
) -> None:
    """The model is Qwen3.5, whose linear attention vLLM computes in bfloat16 alone; every byte of
    each version is compared."""
    run, model = tmp_path / "run", tmp_path / "model"
    built(FAMILIES["Qwen3.5"], KINDS["vllm"]).save_pretrained(model)
    write_tokenizer(model)
    argv = train_command(
        model,
        run,
        model__dtype="bfloat16",
        engine__kind="vllm",
        engine__vllm__launch=[*vllm_launch],
        engine__context_tokens=128,
        publication__bucket_bytes=1 << 20,
        train__steps=3,
    )
    done = train(argv)
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count >= 3
    assert "is started again" not in done.stdout
    wait_for("nothing that is left", lambda: not processes_with(str(run / "initial")))


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(4 * START_S)
def test_a_run_goes_on_when_a_server_the_coordinator_and_the_launcher_are_killed(
    vllm_launch: tuple[str, ...], tmp_path: Path
) -> None:
    """A server that was killed is started again; the others outlive whoever is killed, and are
    taken over. One of the two is lent, and works while the trainer waits. The model is a mixture of
    experts, of whose weights every byte of each version is compared."""
    run = tmp_path / "run"
    argv = train_command(
        tiny_moe(tmp_path / "model"),
        run,
        engine__kind="vllm",
        engine__vllm__launch=[*vllm_launch],
        engine__context_tokens=128,
        rollout__actors=2,
        rollout__lent_actors=1,
        rollout__lending="switch",
        train__steps=10_000,
    )
    guards = partial(processes_with, str(run / "initial"), GUARD)  # of a server each

    def wait_for_steps(who: str) -> None:
        seen = steps_done(run)
        wait_for(f"steps {who}", lambda: steps_done(run) >= seen + 2)

    with started(argv) as launcher:
        wait_for("steps", lambda: steps_done(run) >= 2, 2 * START_S)  # two servers start at once
        before = wait_for("both servers", lambda: (found := guards())[1:] and found)
        left, killed = before
        os.kill(session(killed)[1], signal.SIGKILL)  # the server: the first is its guard
        wait_for("the end of what guards it", lambda: killed not in guards())
        wait_for_steps("by the other one")
        both = wait_for("another server", lambda: (found := guards())[1:] and found)
        assert left in both
        wait_for("both to be ready", lambda: len(kept(run)) == 2)

        coordinator = processes(run)["coordinator-0"]
        os.kill(coordinator, signal.SIGKILL)
        wait_for(
            "the next", lambda: processes(run).get("coordinator-0", coordinator) != coordinator
        )
        wait_for_steps("with another coordinator")
        assert guards() == both
        lending = wait_for(
            "a loan",
            lambda: (now := run_status.read(run / STATUS).lending) and now.loans and now,
        )
        assert lending.engines == 1
        launcher.kill()
        launcher.wait()
    with started(resume(run)) as launcher:
        wait_for_steps("with another launcher")
        assert guards() == both
        launcher.send_signal(signal.SIGTERM)
        code, shown, said = end(launcher)
    assert not guards(), "who ends well leaves nothing"
    assert code == 0, shown + said
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count > 0, "each of them was verified"
    logs = [path.read_text() for path in (run / "logs").glob("rollout-*")]
    assert logs and not any("no known layout explains" in log for log in logs)
    wait_for("nothing that is left", lambda: not processes_with(str(run / "initial")))


def kept(run: Path) -> list[str]:
    """The servers that can be taken over, by now."""
    return [link.name for link in (run / SERVERS).glob("*") if link.exists()]
