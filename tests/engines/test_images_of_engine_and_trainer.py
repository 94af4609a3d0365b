"""Images in a small Qwen2.5-VL and a small Qwen3-VL: the engine's and the trainer's numbers are
those of the model's own forward pass with its own processor's inputs, whatever shares a pass, a
slot or a tree."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.bundled.small_vision import IMAGE_ID, PATCH, Family, write_vision_model
from asyncrl.engines.embedded.batcher import Batcher
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.embedded.engine_images import EngineImages
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.servers.server_images import ServerImages
from asyncrl.messages import MicroBatch, PromptFacts, Sample, Span
from asyncrl.tasks.images.image_source import ImageSource
from asyncrl.tasks.images.kept_images import ImagesFull, KeptImages
from asyncrl.tasks.images.pixels import pixels_of, written_png
from asyncrl.tasks.images.vision_model import ImageRows, ModelImages, VisionModel
from asyncrl.tasks.prompt import ChatPrompt
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.batch import read
from asyncrl.training.forward import log_probabilities
from asyncrl.training.models import load_model
from asyncrl.training.packing import part_of
from asyncrl.training.recomputation import recompute
from asyncrl.training.shown_images import TrainedImages, freeze_tower
from asyncrl.training.trial import try_passes

if os.environ.get("CI"):
    import PIL  # noqa: F401
else:
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")

SIZES = ((56, 84), (28, 28), (140, 60))


class World:
    """A model directory of a family, and prompts of the same text with other images."""

    def __init__(self, folder: Path, family: Family) -> None:
        write_vision_model(folder / "model", seed=3, family=family)
        self.path = folder / "model"
        self.store = KeptImages(folder / "images")
        self.images = ModelImages(self.store, VisionModel(self.path))
        self.tokenizer = Tokenizer(self.path, chat=True)
        draw = np.random.default_rng(5)
        self.names = [
            self.store.keep(written_png(draw.integers(0, 255, (*size, 3), dtype=np.uint8)))
            for size in SIZES
        ]

    def ids(self, images: list[str], text: str = "Which?") -> np.ndarray[Any, Any]:
        content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
        ids = self.tokenizer.ids(self.tokenizer.render([{"role": "user", "content": content}]))
        tokens = [self.images.tokens(name) for name in images]
        return np.array(self.images.model.expanded(ids, tokens), np.int32)

    def own(self, model: Any, images: list[str], ids: np.ndarray[Any, Any], prompt: int) -> Tensor:
        """The model's own log-probabilities of the tokens behind the prompt: of a pass over the
        prompt with its images, and one over the response, in which a placeholder is a token."""
        before, after = torch.from_numpy(ids.astype(np.int64))[None].split(
            [prompt, len(ids) - prompt], dim=1
        )
        given: dict[str, Any] = {}
        model.model.rope_deltas = None
        if images:
            shown = [self.images.of(name) for name in images]
            given = {
                "pixel_values": torch.from_numpy(np.concatenate([s.patches for s in shown])),
                "image_grid_thw": torch.tensor([s.grid for s in shown]),
                "mm_token_type_ids": (before == IMAGE_ID).int(),
            }
        first = model(input_ids=before, use_cache=True, **given)
        rest = model(input_ids=after, past_key_values=first.past_key_values).logits
        logits = torch.cat([first.logits[0, -1:], rest[0, :-1]]).log_softmax(-1)
        own: Tensor = logits.gather(1, after[0, :, None])[:, 0]
        return own


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[Family, World]:
    return {family: World(tmp_path_factory.mktemp("vision"), family) for family in PATCH}


@pytest.fixture(scope="module")
def world(worlds: dict[Family, World]) -> World:
    return worlds["qwen2_5_vl"]


PROMPTS: list[list[int]] = [[0], [1], [0, 2], [2, 0], [0, 0], []]
"""Images of each prompt: of one text, and several of one image."""


def sampled(world: World, *, kv: str = "keep", loads: int = 1) -> list[tuple[Request, list[Chunk]]]:
    """Sample each prompt twice by an engine, under one set of weights."""
    model = load_model(world.path)
    options = EmbeddedOptions(
        slots=5, context_tokens=128, chunk_tokens=4, stop_ids=frozenset([256]), run_seed=1,
        kv=kv, packed_from=3,
    )  # fmt: skip
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    batcher = Batcher(model, options, EngineImages(world.images))
    requests = []
    for number in range(2 * len(PROMPTS)):
        images = tuple(world.names[image] for image in PROMPTS[number // 2])
        requests.append(
            Request(number, 1, number, world.ids(list(images)), 0, 9, 1.0, images=images)
        )
    batcher.submit(requests)
    got: dict[int, list[Chunk]] = {request.rollout: [] for request in requests}
    for version in range(loads):
        batcher.load(version, weights, pin=False)
        for _ in range(1 if version + 1 < loads else 50):
            for chunk in batcher.advance(3):
                got[chunk.rollout].append(chunk)
    assert not batcher.has_work
    return [(request, got[request.rollout]) for request in requests]


@pytest.mark.parametrize(
    ("family", "kv", "loads"), [("qwen2_5_vl", "keep", 1), ("qwen3_vl", "recompute", 3)]
)
def test_the_engine_samples_by_the_model_s_own_numbers(
    worlds: dict[Family, World], family: Family, kv: str, loads: int
) -> None:
    world = worlds[family]
    model, off = load_model(world.path), list[float]()
    for request, chunks in sampled(world, kv=kv, loads=loads):
        ids = np.concatenate([request.ids, *(chunk.ids for chunk in chunks)])
        behaviour = np.concatenate([chunk.behaviour for chunk in chunks])
        own = world.own(model, list(request.images), ids, len(request.ids)).detach()
        off += np.abs(own.numpy() - behaviour).tolist()
    assert len(off) > 60 and np.median(off) < 1e-6 and max(off) < 1e-4


Made = tuple[MicroBatch, list[bytes], list[tuple[Request, Any, Any]]]


@pytest.fixture(scope="module")
def made_of(worlds: dict[Family, World]) -> dict[Family, Made]:
    return {family: micro_batch_of(world) for family, world in worlds.items()}


def micro_batch_of(world: World) -> Made:
    """A micro-batch of what an engine sampled, each prompt a group, and its parts."""
    samples, known = list[Sample](), []
    for request, chunks in sampled(world):
        ids = np.concatenate([chunk.ids for chunk in chunks])
        ids[min(1, len(ids) - 1)] = IMAGE_ID  # a model may sample a placeholder: it is a token
        behaviour = np.concatenate([chunk.behaviour for chunk in chunks])
        start, end = len(request.ids), len(request.ids) + len(ids)
        samples.append(
            Sample(
                request.rollout,
                request.rollout // 2,
                start,
                len(ids),
                1.0,
                [Span(0, start, end)],
            )
        )
        known.append((request, ids, behaviour))
    buffers = [
        np.concatenate([part for request, ids, _ in known for part in (request.ids, ids)]),
        np.concatenate([behaviour for _, _, behaviour in known]),
        np.ones(sum(len(ids) for _, ids, _ in known), np.uint8),
    ]
    facts = {
        group: PromptFacts(group, images=tuple(world.names[image] for image in images))
        for group, images in enumerate(PROMPTS)
    }
    batch = MicroBatch(0, 0, samples, {}, prompts=facts)
    return batch, [buffer.tobytes() for buffer in buffers], known


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_trainer_s_numbers_are_the_model_s_own(
    worlds: dict[Family, World], made_of: dict[Family, Made], family: Family
) -> None:
    world, made = worlds[family], made_of[family]
    model = load_model(world.path)
    assert try_passes(model, 128).passes == "packed"
    batch, buffers, known = made
    tensors = read(batch, buffers, shared=True, images=TrainedImages(world.images, model))
    placed = sum(len(packed.tree.ids) for packed in tensors.packed)
    assert placed < sum(s.prompt_tokens + s.response_tokens for s in batch.samples) * 0.75  # shared
    every = torch.zeros(len(tensors.behaviour))
    for packed in tensors.packed:
        with torch.no_grad():
            every[packed.tokens] = log_probabilities(model, packed, 1.0)
    own = torch.cat(
        [
            world.own(
                model,
                list(request.images),
                np.concatenate([request.ids, ids]),
                len(request.ids),
            )
            for request, ids, _ in known
        ]
    ).detach()
    assert (every - own).abs().max() < 1e-5
    first = np.cumsum([0, *(len(ids) for _, ids, _ in known[:-1])])  # behind it is another id
    gap = every.numpy()[first] - np.array([behaviour[0] for _, _, behaviour in known])
    assert np.median(np.abs(gap)) < 1e-5  # engine and trainer
    some = torch.arange(len(tensors.packed[0].targets)) % 3 == 0
    part = part_of(tensors.packed[0], some)
    with torch.no_grad():
        again = log_probabilities(model, part, 1.0)
    assert (again - own[part.tokens]).abs().max() < 1e-5


@pytest.mark.parametrize(("family", "frozen"), [("qwen2_5_vl", True), ("qwen3_vl", False)])
def test_gradients_are_those_of_the_model_s_own_pass(
    worlds: dict[Family, World], made_of: dict[Family, Made], family: Family, frozen: bool
) -> None:
    """And of layers that are computed again in the backward pass."""
    world, made = worlds[family], made_of[family]
    model = load_model(world.path)
    if frozen:
        freeze_tower(model)
    recompute(model)
    batch, buffers, known = made
    tensors = read(batch, buffers, shared=True, images=TrainedImages(world.images, model))
    for packed in tensors.packed:
        log_probabilities(model, packed, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert any("visual" in name for name in got) != frozen
    model = load_model(world.path)
    if frozen:
        freeze_tower(model)
    for request, ids, _ in known:
        whole = np.concatenate([request.ids, ids])
        own = world.own(model, list(request.images), whole, len(request.ids))
        own.sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            scale = float(parameter.grad.abs().max()) + 1e-3
            assert float((got[name] - parameter.grad).abs().max()) / scale < 1e-3, name


def test_an_image_is_read_once_however_many_rollouts_show_it(world: World) -> None:
    """And an actor keeps as many patches as it has room for."""
    store = KeptImages(world.path.parent / "images")
    images = ModelImages(store, VisionModel(world.path))
    engine, name = EngineImages(images), world.names[0]
    for rollout in range(64):
        engine.marked(Request(rollout, 1, rollout, world.ids([name]), 0, 9, 1.0, images=(name,)))
    assert images.read_bytes() == len(world.store.png(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncrl.tasks.images.vision_model.PATCH_BYTES", 1)
        for other in world.names:
            images.of(other)
        assert list(images._kept) == [world.names[-1]]
    rows = ImageRows(2)
    assert [rows.of(one, 3)[0] for one in "abcab"] == [0, 3, 6, 9, 12] and len(rows.first) == 2


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_server_is_shown_what_the_model_s_processor_has_scaled(
    worlds: dict[Family, World], family: Family
) -> None:
    """It has nothing to scale, so it reads the same patches; and each image is one placeholder."""
    world = worlds[family]
    model, server = world.images.model, ServerImages(world.images)
    shown = [world.names[place] for place in (2, 0, 2)]
    ids = np.append(world.ids(shown), [7, 8]).astype(np.int32)
    request = Request(0, 1, 0, ids, 2, 9, 1.0, images=tuple(shown))
    options = server.options(request, ids)
    assert options["expanded"] == len(ids) > len(options["ids"])
    assert model.expanded(options["ids"], list(map(world.images.tokens, shown))) == ids.tolist()
    for name, sent in zip(shown, options["images"], strict=True):
        pixels = pixels_of(base64.b64decode(sent))
        assert np.array_equal(model.scaled(pixels), pixels)
        assert np.array_equal(model.patches(pixels).patches, world.images.of(name).patches)
    call, at = ids.copy(), np.flatnonzero(ids == IMAGE_ID)
    of = np.repeat([0, 1, 0], list(map(world.images.tokens, shown)))
    call[at] = -1 - of  # of an agent's call, which names each image once
    named = msgspec.structs.replace(request, ids=call, images=(shown[0], shown[1]))
    again = server.options(named, call)
    assert again["images"] == options["images"] and (again["ids"] == options["ids"]).all()
    with pytest.raises(ValueError, match=f"has the id {IMAGE_ID}"):
        server.options(request, np.append(ids, IMAGE_ID).astype(np.int32))


def test_the_run_s_images_are_bounded(tmp_path: Path) -> None:
    small, large = (written_png(np.full((n, n, 3), n, np.uint8)) for n in (2, 200))
    kept = KeptImages(tmp_path / "images", most=len(small) + len(large) - 1)
    first = kept.keep(small)
    with pytest.raises(ImagesFull, match=r"no room .* raise run\.images_gb"):
        kept.keep(large)
    assert kept.keep(small) == first and kept.kept_bytes == len(small)  # it is there
    again = KeptImages(tmp_path / "images", most=len(small) + len(large))
    again.keep(large)
    assert again.kept_bytes == len(small) + len(large)


def test_processes_that_keep_images_have_one_bound(tmp_path: Path) -> None:
    """They write in turns, and none sees what another writes."""
    pngs = [written_png(np.full((8, 8, 3), n, np.uint8)) for n in range(256)]
    most = len(pngs[0]) * 128
    processes = [KeptImages(tmp_path / "images", most) for _ in range(3)]
    with pytest.raises(ImagesFull):
        for number, png in enumerate(pngs):
            processes[number % 3].keep(png)
    took = sum(image.stat().st_size for image in (tmp_path / "images").iterdir())
    assert 0.9 * most < took < 1.1 * most


def test_what_is_not_the_image_s_is_refused_by_name(
    world: World, made_of: dict[Family, Made]
) -> None:
    ids, name = world.ids([world.names[0]]), world.names[0]
    with pytest.raises(ValueError, match="placeholders"):
        world.images.marked(ids, len(ids), [world.names[1]], ImageRows())
    with pytest.raises(ValueError, match="cannot be read"):
        world.store.png("0" * 64)
    with pytest.raises(ValueError, match="no hash"):
        world.store.png("../model/config.json")
    batch, buffers, _ = made_of["qwen2_5_vl"]
    with pytest.raises(ValueError, match="opened without those of a run"):
        read(batch, buffers, shared=True)
    changed = world.store._folder / name
    whole = changed.read_bytes()
    changed.write_bytes(whole[:-1] + b"x")
    with pytest.raises(ValueError, match="another hash"):
        world.store.png(name)
    changed.write_bytes(whole)


def test_a_conversation_s_images_are_expanded_by_the_model_s_processor(world: World) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "Which?"}]
    png = world.store.png(world.names[0])
    prompt = ChatPrompt([{"role": "user", "content": content}], "", [], [ImageSource(png)])
    ids, kept = world.tokenizer.encode_shown(prompt)
    assert ids == world.ids([world.names[0]]).tolist() and kept == [png]
    assert ids.count(IMAGE_ID) == 6
