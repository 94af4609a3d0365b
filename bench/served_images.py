"""Images through a real SGLang server on a processor: does it read them as the trainer does?

For each family that reads images a server starts with a small model of random weights, and is given
two versions by broadcast: one in which every tensor has changed, and one in which the tower for
images has not. Of each the server's checksums are compared with the trainer's, and the
log-probabilities of what it samples with those of the model's own pass: of one image, of two, of
one twice, and of sizes that are scaled.

    python bench/served_images.py [--families qwen2_5_vl qwen3_vl] [--logs FOLDER]

The columns: the family; the server's tensors that are compared byte by byte, and others; the
median and the largest difference of log-probabilities in nats, over all sampled tokens.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
from numpy.typing import NDArray
from served_families import DEADLINE_S, HOST, READY_S, ROOT, SLOTS, changed
from torch import Tensor

from asyncrl.bundled.bundled_model import END_ID, PADDING_ID
from asyncrl.bundled.small_vision import IMAGE_ID, PATCH, Family, write_vision_model
from asyncrl.engines import canary
from asyncrl.engines.protocol import Request
from asyncrl.engines.servers.managed import managed
from asyncrl.engines.servers.server_images import ServerImages
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.engines.sglang.sglang_launch import PROGRAM
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import written_png
from asyncrl.tasks.images.vision_model import ModelImages, VisionModel
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.weight_loader import WeightLoader

SIZES = (56, 84), (28, 28), (140, 60), (300, 200)
PROMPTS = [0], [1], [0, 1], [2], [3], [2, 2], [3, 0, 1], []
CONTEXT, SAMPLED = 256, 16


class World:
    """A small model's folder, its images, and prompts that show some of them."""

    def __init__(self, folder: Path, family: Family) -> None:
        self.path = folder / "model"
        write_vision_model(self.path, seed=3, family=family)
        self.store = KeptImages(folder / "images")
        self.images = ModelImages(self.store, VisionModel(self.path))
        self._tokenizer = Tokenizer(self.path, chat=True)
        draw = np.random.default_rng(5)
        self.names = [
            self.store.keep(written_png(draw.integers(0, 255, (*size, 3), dtype=np.uint8)))
            for size in SIZES
        ]

    def request(self, shown: list[int]) -> Request:
        content = [*({"type": "image"} for _ in shown), {"type": "text", "text": "Which?"}]
        names = [self.names[one] for one in shown]
        ids = self._tokenizer.ids(self._tokenizer.render([{"role": "user", "content": content}]))
        whole = self.images.model.expanded(ids, list(map(self.images.tokens, names)))
        ids_of = np.array(whole, np.int32)
        return Request(0, 1, 0, ids_of, 0, SAMPLED, 1.0, images=tuple(names))

    def own(self, model: Any, request: Request, response: NDArray[np.int32]) -> NDArray[Any]:
        """The model's own log-probabilities: of a pass over the prompt with its images, and one
        over the response, in which a placeholder is a token."""
        before, after = (
            torch.from_numpy(ids.astype(np.int64))[None] for ids in (request.ids, response)
        )
        model.model.rope_deltas = None
        given: dict[str, Tensor] = {}
        if request.images:
            shown = [self.images.of(name) for name in request.images]
            given = {
                "pixel_values": torch.from_numpy(np.concatenate([one.patches for one in shown])),
                "image_grid_thw": torch.tensor([one.grid for one in shown]),
                "mm_token_type_ids": (before == IMAGE_ID).int(),
            }
        with torch.no_grad():
            first = model(input_ids=before, use_cache=True, **given)
            rest = model(input_ids=after, past_key_values=first.past_key_values).logits
        logits = torch.cat([first.logits[0, -1:], rest[0, :-1]]).log_softmax(-1)
        return logits.gather(1, after[0, :, None])[:, 0].numpy()


async def sampled(client: SglangClient, world: World, model: Any) -> list[float]:
    """The differences of all prompts, each asked for twice at a time."""
    server, off = ServerImages(world.images), list[float]()

    async def ask(shown: list[int]) -> None:
        request = world.request(shown)
        options = server.options(request, request.ids)
        stream = client.generate(
            uuid.uuid4().hex, **options, max_new_tokens=SAMPLED, temperature=1.0
        )
        async with aclosing(stream) as events:
            got = [event async for event in events]
        response = np.concatenate([event.ids for event in got])
        behaviour = np.concatenate([event.behaviour for event in got])
        off.extend(np.abs(behaviour - world.own(model, request, response)).tolist())

    for shown in PROMPTS:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, shown)
            nursery.start_soon(ask, shown)
    return off


async def served(family: Family, python: str, folder: Path, log: Path) -> str:
    """The row of a family."""
    world = World(folder, family)
    model: Any = load_model(world.path)
    launch = ServerLaunch((python,), str(world.path), "float32", "cpu", SLOTS, CONTEXT)
    text = canary.text(IMAGE_ID - 1, {END_ID, PADDING_ID})
    async with (
        managed(PROGRAM, launch, log=log, ready_s=READY_S) as process,
        PROGRAM.open(process, DEADLINE_S) as client,
        ServerGroup.open(HOST, 1, bucket_bytes=100_000) as group,
    ):
        way = ByBroadcast(group, DEADLINE_S)
        loader = WeightLoader(
            client, way, model, text, mode="retract",
            tolerance=canary.TOLERANCE["float32"], deadline_s=DEADLINE_S,
        )  # fmt: skip
        off, weights = list[float](), dict[str, Tensor]()
        for version in (1, 2):
            every = changed(model, version)
            weights = {
                name: weights[name] if "visual" in name and weights else tensor
                for name, tensor in every.items()
            }
            current = copy.deepcopy(model)
            current.load_state_dict(weights, strict=False)
            await loader.load(version, weights, canary.reference(model, weights, text))
            off += await sampled(client, world, current)
        checks = loader.checks
        assert checks is not None, "the server has no checksums"
    others = f"{len(checks.inexact)} inexact, {len(checks.derived)} derived"
    gaps = f"median {np.median(off):.1e}, largest {max(off):.1e} of {len(off)}"
    return f"{family} | {checks.exact} exact, {others} | {gaps}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=list(PATCH), default=list(PATCH))
    parser.add_argument("--logs", type=Path, help="a folder to keep the servers' logs in")
    args = parser.parse_args()
    python = ROOT / ".venv-sglang" / "bin" / "python"
    if not python.exists():
        sys.exit(f"{python} is not there; `make sglang-cpu` builds it")
    torch.set_num_threads(1)
    for family in args.families:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            log = (args.logs or folder) / f"{family}.log"
            print(trio.run(served, family, str(python), folder, log), flush=True)


if __name__ == "__main__":
    main()
