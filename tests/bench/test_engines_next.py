"""Findings of `make engines-next` in a wheel: an endpoint, a name, a method or a module changed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from engines_next import SERVERS, findings, paths_called, read, report

RECEIVER = SERVERS["vllm"].receiver
assert RECEIVER is not None
BASE = "vllm/distributed/weight_transfer/base.py"
MODEL = "vllm/model_executor/models/llama.py"
FUSED = """
mapper = WeightsMapper(
    orig_to_new_stacked={
        ".q_proj": (".qkv_proj", "q"),
        ".k_proj": (".qkv_proj", "k"),
        ".v_proj": (".qkv_proj", "v"),
    }
)
"""


def wheel() -> dict[str, str]:
    """The sources of a server in which nothing that is assumed has changed."""
    paths = paths_called(SERVERS["vllm"].client.read_text())
    sources = {"vllm/api.py": "\n".join(f'post("{path}")' for path in paths)}
    sources[BASE] = (
        "class WeightTransferEngine:\n    @abstractmethod\n    def shutdown(self): ...\n"
        "class WeightTransferInitInfo: ...\nclass WeightTransferUpdateInfo: ...\n"
    )
    sources["vllm/distributed/weight_transfer/factory.py"] = (
        "class WeightTransferEngineFactory: ..."
    )
    layers = "vllm/model_executor/layers"
    sources[f"{layers}/utils.py"] = ""
    sources[f"{layers}/fused_moe/activation.py"] = "class ApplyMoEActivationConfig: ..."
    sources[f"{layers}/fused_moe/experts/cpu_moe.py"] = "class CPUUnquantizedExperts: ..."
    sources[f"{layers}/mamba/ops/cpu/gdn_attention.py"] = ""
    reload = "vllm/model_executor/model_loader/reload"
    sources[f"{reload}/__init__.py"] = (
        "from .layerwise import (\n    finalize_layerwise_reload,\n"
        "    initialize_layerwise_reload,\n)"
    )
    sources[f"{reload}/layerwise.py"] = ""
    sources["vllm/platforms/__init__.py"] = "current_platform: Platform"
    sources["vllm/routing.py"] = (
        "routed_experts_prompt_start: int = 0\nenable_return_routed_experts: bool = False\n"
    )
    sources[MODEL] = FUSED
    return sources


def test_a_wheel_in_which_nothing_changed_has_no_findings() -> None:
    assert findings(SERVERS["vllm"], wheel()) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("vllm/api.py", "/weight_checker", "/checker", "no endpoint /weight_checker"),
        (
            "vllm/routing.py",
            "_prompt_start",
            "_start",
            "no routed_experts_prompt_start, by which the experts of tokens are asked for",
        ),
        ("vllm/routing.py", "enable_r", "r", "no enable_return_routed_experts, by which"),
        (BASE, "def shutdown", "def end", "our receiver has no end, which WeightTransferEngine"),
        (BASE, "InitInfo", "Init", "no vllm.distributed.weight_transfer.base.WeightTransferInitI"),
        (MODEL, ".q_proj", ".query", "llama.py makes qkv_proj of query, k_proj, v_proj"),
    ],
)
def test_each_change_is_named(file: str, old: str, new: str, said: str) -> None:
    sources = wheel()
    assert old in sources[file]
    sources[file] = sources[file].replace(old, new)
    (found,) = findings(SERVERS["vllm"], sources)
    assert found.startswith(said)


def test_a_wheel_is_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vllm-0.35.1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, source in wheel().items():
            archive.writestr(name, source)
        archive.writestr("vllm-0.35.1.dist-info/METADATA", "Requires-Dist: torch==2.99.0\n")
    assert read(file)[0] == wheel()
    assert report("vllm", file)
    said = capsys.readouterr().out
    assert "vLLM 0.35.1: tried is" in said and "torch==2.99.0" in said
    assert "is not taken:" in said and "nothing that is assumed of it has changed" in said
