"""A version into a real SGLang server on a CPU: by broadcast in flattened buckets against by disk,
by turns, for the bundled model and for one of 41 M parameters (float32; `--models`). `--repeat`
versions each way, of which the medians are printed; `--bucket` MB an update call.

The pause is what counts: decoding stands still for `transfer` (into the server's memory, by its own
loader) and `verify` (its checksums). The canary comes after it; the last column is all of `load`,
with what is done before the pause (the trainer's checksums, writing the
files). Files are on /dev/shm where there is one: the disk's speed is not what is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import trio
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from asyncrl.bundled.bundled_model import END_ID, PADDING_ID, VOCABULARY, new_model, write_tokenizer
from asyncrl.engines import canary
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.engines.sglang.sglang_launch import managed
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.from_disk import FromDisk
from asyncrl.weightsync.servers.server_group import ServerGroup, cut
from asyncrl.weightsync.servers.weight_loader import Loaded, WeightLoader

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
DEADLINE_S = 300.0


def large() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=12,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END_ID,
            pad_token_id=PADDING_ID,
        )
    )


MODELS = {"bundled": lambda: new_model(0), "large": large}


async def measure(name: str, python: Path, repeat: int, bucket_bytes: int, directory: Path) -> None:
    model = MODELS[name]()
    model.save_pretrained(directory / name)
    write_tokenizer(directory / name)
    weights = {parameter: tensor.detach() for parameter, tensor in model.named_parameters()}
    total = sum(tensor.nbytes for tensor in weights.values())
    launch = ServerLaunch((str(python),), str(directory / name), "float32", "cpu", 32, 1024)
    async with (
        managed(launch, log=directory / f"{name}.log") as server,
        SglangClient.open(server.url, api_key=server.key) as client,
        ServerGroup.open(HOST, 1, bucket_bytes=bucket_bytes) as group,
    ):
        text = canary.text(VOCABULARY, {END_ID, PADDING_ID})
        ways = {
            "broadcast": ByBroadcast(group, DEADLINE_S),
            "disk": FromDisk(directory / "versions"),
        }
        publishers = {
            way: WeightLoader(
                client, how, model, text, mode="retract", tolerance=1e-3, deadline_s=DEADLINE_S
            )
            for way, how in ways.items()
        }
        rows: dict[str, list[tuple[Loaded, float]]] = {way: [] for way in ways}
        for version in range(repeat + 1):
            for way, publisher in publishers.items():
                for tensor in weights.values():
                    tensor.mul_(1.001)
                reference = canary.reference(model, weights, text)
                start = time.perf_counter()
                loaded = await publisher.load(version, weights, reference)
                if (
                    version
                ):  # the first one joins the group, and finds out how the server lays weights out
                    rows[way].append((loaded, time.perf_counter() - start))
        calls = len(cut(weights, bucket_bytes))
        print(
            f"\n{name}: {total / 1e6:.0f} MB, {calls} update calls of at most "
            f"{bucket_bytes / 2**20:g} MB; seconds, medians of {repeat}"
        )
        print("          |  pause | transfer  verify | canary | all of it | canary's difference")
        for way, found in rows.items():
            p, t, v, c, a = (
                median(column)
                for column in zip(
                    *((x.pause_s, x.transfer_s, x.verify_s, x.canary_s, s) for x, s in found),
                    strict=True,
                )
            )
            worst = max(x.difference for x, _ in found)
            print(f"{way:9} | {p:6.3f} | {t:8.3f} {v:7.3f} | {c:6.3f} | {a:9.3f} | {worst:.1e}")
        pairs = zip(rows["broadcast"], rows["disk"], strict=True)
        print(
            "pause by broadcast over pause by disk: "
            f"{median(one.pause_s / other.pause_s for (one, _), (other, _) in pairs):.2f}"
        )


async def main(
    names: list[str], python: Path, repeat: int, bucket_mb: int, directory: Path
) -> None:
    torch.set_num_threads(1)
    for name in names:
        await measure(name, python, repeat, bucket_mb * 2**20, directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--python",
        type=Path,
        default=ROOT / ".venv-sglang" / "bin" / "python",
        help="a Python that has SGLang",
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--bucket", type=int, default=32)
    args = parser.parse_args()
    if not args.python.exists():
        sys.exit(f"{args.python} is not there; `make sglang-cpu` builds it")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        trio.run(main, args.models, args.python, args.repeat, args.bucket, Path(directory))
