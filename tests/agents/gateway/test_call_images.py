"""Images in agents' calls: the same in each dialect, kept once, told apart in ids, and refused in
the dialect's own form where they cannot be read."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from gateway_world import MODEL, Says, opened, say, scripted
from trio.testing import MockClock

from asyncrl.agents.gateway.call_images import CallImages
from asyncrl.bundled.small_vision import (
    IMAGE_ID,
    SEEN,
    START_ID,
    STOP_ID,
    VOCABULARY,
    write_vision_model,
)
from asyncrl.engines.protocol import Request
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.vision_model import VisionModel
from asyncrl.tasks.text import Tokenizer

Image = pytest.importorskip("PIL.Image", reason="images need Pillow (the extra vision)")
CHAT, MESSAGES, RESPONSES = (
    f"/sessions/r1-1/v1/{path}" for path in ("chat/completions", "messages", "responses")
)
SIGHTED: dict[str, Any] = {"blind": "", "vocabulary": VOCABULARY}


class Sighted(NamedTuple):
    """A tokenizer, and the images of a model that reads them, in a folder of their own."""

    tokenizer: Tokenizer
    model: VisionModel
    folder: Path

    def images(self) -> CallImages:
        return CallImages(KeptImages(self.folder), self.model, SEEN[1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_vision_model(folder, seed=3)
    return folder


@pytest.fixture
def sighted(directory: Path, tmp_path: Path) -> Sighted:
    return Sighted(Tokenizer(directory, chat=True), VisionModel(directory), tmp_path / "images")


def encoded(colour: str, size: tuple[int, int] = (56, 56), kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, colour).save(data, kind)
    return data.getvalue()


def shown(path: str, data: bytes) -> dict[str, Any]:
    """An image as a part of a user's message, as clients of this path send it."""
    text = base64.b64encode(data).decode()
    if path == MESSAGES:
        source = {"type": "base64", "media_type": "image/png", "data": text}
        return {"type": "image", "source": source}
    url = f"data:image/png;base64,{text}"
    if path == CHAT:
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def named(path: str, url: str) -> dict[str, Any]:
    """A user's message that names an image."""
    part: Any = {"type": "image", "source": {"type": "url", "url": url}}
    if path != MESSAGES:
        part = {"type": shown(path, b"")["type"], "image_url": url}
    return {"role": "user", "content": [part]}


def asked(path: str, *messages: Any, **more: Any) -> dict[str, Any]:
    said = "input" if path == RESPONSES else "messages"
    most = {"max_output_tokens" if path == RESPONSES else "max_tokens": 4}
    return {"model": MODEL, said: list(messages), **most, **more}


def user(path: str, text: str, *images: bytes) -> dict[str, Any]:
    parts = [shown(path, image) for image in images]
    kind = "input_text" if path == RESPONSES else "text"
    return {"role": "user", "content": [*parts, {"type": kind, "text": text}]}


def seen(requests: list[Request]) -> list[tuple[list[int], tuple[str, ...]]]:
    return [(request.ids.tolist(), request.images) for request in requests]


def of(text: str, *parts: int) -> list[int]:
    """The ids of a user's message: an image of four parts for each number, and a text."""
    images = [one for part in parts for one in (START_ID, *[-1 - part] * 4, STOP_ID)]
    return [*images, *text.encode(), ord("\n")]


async def test_an_image_is_the_same_in_each_dialect_and_is_kept_once(
    sighted: Sighted, virtual: MockClock
) -> None:
    says, images = Says(say("B", ends="length")), sighted.images()
    engine, red = scripted(says, vocabulary=VOCABULARY), encoded("red")
    result = [shown(MESSAGES, red), {"type": "text", "text": "seen"}]
    called: list[Any] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": result}
        ]},
    ]  # fmt: skip
    output = {"type": "function_call_output", "call_id": "c", "output": [
        shown(RESPONSES, red), {"type": "input_text", "text": "seen"},
    ]}  # fmt: skip
    async with opened(engine, sighted.tokenizer, images=images, **SIGHTED) as (_, client):
        await engine.load(0, None)
        for path in (CHAT, MESSAGES, RESPONSES):
            said = await client.post(path, json=asked(path, user(path, "Where?", red)))
            assert said.status_code == 200, said.text
        count = await client.post(
            MESSAGES + "/count_tokens", json=asked(MESSAGES, user(MESSAGES, "Where?", red))
        )
        await client.post(MESSAGES, json=asked(MESSAGES, *called))
        await client.post(RESPONSES, json=asked(RESPONSES, output))
    kept = [path.name for path in sighted.folder.iterdir()]
    assert len(kept) == 1 and images.decoded == 1
    first = of("Where?", 0)
    assert seen(says.requests[:3]) == [(first, (kept[0],))] * 3
    assert count.json() == {"input_tokens": len(first)}
    for request in says.requests[3:]:
        assert request.images == (kept[0],)
        assert request.ids.tolist()[-len(of("seen", 0)) :] == of("seen", 0)


@pytest.mark.parametrize("as_sampled", [False, True])
async def test_turns_with_screens_are_exact(
    sighted: Sighted, virtual: MockClock, as_sampled: bool
) -> None:
    """The next context is the last one with its reply; images of one size are told apart; without
    the first screen the second one is the first; another attempt asks the same."""
    says = Says(say("B"), say("C"), say("D"), say("B"), say("C"))
    engine, red, blue = scripted(says, vocabulary=VOCABULARY), encoded("red"), encoded("blue")
    one, reply = user(CHAT, "Where?", red), {"role": "assistant", "content": "B"}
    two, other = user(CHAT, "And?", blue), user(CHAT, "Where?", blue)
    settings: dict[str, Any] = {**SIGHTED, "as_sampled": as_sampled}
    async with opened(engine, sighted.tokenizer, images=sighted.images(), **settings) as (
        coordinator, client,
    ):  # fmt: skip
        await engine.load(0, None)
        coordinator.play(1, 2)
        for messages in ([one], [one, reply, two], [other, reply, two]):
            said = await client.post(CHAT, json=asked(CHAT, *messages))
            assert said.status_code == 200, said.text
        again = CHAT.replace("r1-1", "r1-2")
        for messages in ([one], [one, reply, two]):
            assert (await client.post(again, json=asked(CHAT, *messages))).status_code == 200
    asks = seen(says.requests)
    first, second = asks[0][1][0], asks[1][1][1]
    assert asks[0] == (of("Where?", 0), (first,)) and first != second
    ended = [*b"B", 256]
    assert asks[1] == ([*of("Where?", 0), *ended, *of("And?", 1)], (first, second))
    assert asks[2] == ([*of("Where?", 0), *ended, *of("And?", 0)], (second,))
    assert asks[3:] == asks[:2]
    assert [ask.images for ask in coordinator.asks] == [images for _, images in asks]


async def test_a_bad_image_is_a_sentence_of_its_dialect_and_others_go_on(
    sighted: Sighted, virtual: MockClock
) -> None:
    says = Says(say("B"))
    engine, red = scripted(says, vocabulary=VOCABULARY), encoded("red")
    bomb = bytearray(encoded("red", (1, 1)))
    bomb[16:24] = (200_000).to_bytes(4, "big") * 2  # what its head says
    async with opened(engine, sighted.tokenizer, images=sighted.images(), **SIGHTED) as (_, client):
        await engine.load(0, None)
        for path in (CHAT, MESSAGES, RESPONSES):
            wrong: list[tuple[Any, str]] = [
                (user(path, "?", b"nothing"), "cannot be decoded"),
                (user(path, "?", bytes(bomb)), "cannot be decoded"),
                (user(path, "?", encoded("red", (9000, 8))), "refuses an image"),
                (user(path, "?", *[red] * 17), "17"),
                (user(path, f"a {SEEN[1]} b", red), "2 places for 1 images"),
                (user(path, SEEN[1]), "1 places for 0 images"),
                (user(path, "?", red) | {"role": "system"}, "images are a user's or a tool's"),
            ]
            for url, why in (("http://x/a.png", "not in task.image_hosts"), ("a.png", "or a URL")):
                wrong.append((named(path, url), why))
            for message, why in wrong:
                said = await client.post(path, json=asked(path, message))
                assert said.status_code == 400, said.text
                body = said.json()
                assert why in body["error"]["message"], body
                assert (path == MESSAGES) == (body.get("type") == "error")
            said = await client.post(path, json=asked(path, user(path, "Where?", red)))
            assert said.status_code == 200, said.text
    assert len(says.requests) == 3 and len([*sighted.folder.iterdir()]) == 1
    large = scripted(Says(say("B")), vocabulary=VOCABULARY)
    async with opened(large, sighted.tokenizer, blind="this model reads only text") as (_, client):
        await large.load(0, None)
        said = await client.post(CHAT, json=asked(CHAT, user(CHAT, "Where?", red)))
        assert said.status_code == 400 and "reads only text" in said.json()["error"]["message"]


def test_a_number_is_of_one_image(sighted: Sighted) -> None:
    """An engine and a trainer read of numbers what they read of placeholders in their order."""
    from asyncrl.tasks.images.pixels import written_png
    from asyncrl.tasks.images.vision_model import ImageRows, ModelImages

    store = KeptImages(sighted.folder)
    names = [store.keep(written_png(np.full((56, 56, 3), n, np.uint8))) for n in range(2)]
    images, rows = ModelImages(store, sighted.model), ImageRows()
    given = np.array([7, *[-2] * 4, 8, *[-1] * 8, 9, IMAGE_ID, 9], np.int32)
    marked, order = images.numbered(given, names, rows)
    assert order == [names[1], names[0], names[0]] and given[1] == -2
    expanded = np.where(given < 0, IMAGE_ID, given)
    assert (marked == images.marked(expanded, 15, order, rows)).all()
    assert marked[-2] == IMAGE_ID  # the model sampled it
    for broken in ([7, *[-1] * 3, 8], [-3] * 4, [7, *[-1] * 4]):
        with pytest.raises(ValueError, match="image"):
            images.numbered(np.array(broken, np.int32), names, rows)


async def test_a_url_of_a_listed_host_is_fetched_once(
    sighted: Sighted, virtual: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its history is sent again; what cannot be fetched is the sentence of its call."""
    asked_for = list[str]()

    def fetched(url: str, hosts: tuple[str, ...]) -> bytes:
        assert hosts == ("x",)
        asked_for.append(url)
        if "gone" in url:
            raise LookupError("its image cannot be fetched: the host answers 404")
        return encoded("red")

    monkeypatch.setattr("asyncrl.agents.gateway.prompt_reader.fetched", fetched)
    says, images = Says(say("B", ends="length")), sighted.images()
    engine = scripted(says, vocabulary=VOCABULARY)
    settings: dict[str, Any] = {**SIGHTED, "image_hosts": ("x",)}
    async with opened(engine, sighted.tokenizer, images=images, **settings) as (_, client):
        await engine.load(0, None)
        for path in (CHAT, MESSAGES, RESPONSES):
            said = await client.post(path, json=asked(path, named(path, "https://x/a.png")))
            assert said.status_code == 200, said.text
            said = await client.post(path, json=asked(path, named(path, "https://x/gone.png")))
            assert said.status_code == 400 and "answers 404" in said.text
    assert asked_for.count("https://x/a.png") == 1 and images.decoded == 1
    assert seen(says.requests) == [(of("", 0), says.requests[0].images)] * 3
    assert len(says.requests[0].images) == 1


async def test_one_image_in_64_rollouts_costs_its_bytes_once(
    sighted: Sighted, virtual: MockClock
) -> None:
    """It is decoded and written once, messages have its hash alone, and an actor reads its file
    once."""
    from asyncrl.messages import Ask
    from asyncrl.tasks.images.vision_model import ImageRows, ModelImages

    says, images = Says(say("B")), sighted.images()
    engine = scripted(says, vocabulary=VOCABULARY)
    noise = np.random.default_rng(5).integers(0, 255, (112, 112, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "PNG")
    body = asked(CHAT, user(CHAT, "Where?", data.getvalue()))
    async with opened(engine, sighted.tokenizer, images=images, **SIGHTED) as (
        coordinator, client,
    ):  # fmt: skip
        await engine.load(0, None)
        for rollout in range(2, 66):
            coordinator.play(rollout)
            path = CHAT.replace("r1-1", f"r{rollout}-1")
            assert (await client.post(path, json=body)).status_code == 200
    (file,) = sighted.folder.iterdir()
    size = file.stat().st_size
    asks = [message for message in coordinator.heard if isinstance(message, Ask)]
    linked = sum(len(msgspec.msgpack.encode(ask)) for ask in asks)
    assert len(asks) == 64 and images.decoded == 1 and linked < 64 * 200 < size
    store = KeptImages(sighted.folder)
    read, rows = ModelImages(store, sighted.model), ImageRows()
    for request in says.requests:
        read.numbered(request.ids, request.images, rows)
        read.of(request.images[0])
    assert store.read_bytes == size  # of 64 rollouts
    print(f"{size:,} bytes once on disk and in an actor, {linked:,} over links")


async def test_a_program_gets_the_messages_of_its_prompt(
    sighted: Sighted, virtual: MockClock
) -> None:
    from asyncrl.agents.data_messages import messages_with_images
    from asyncrl.tasks.images.image_source import ImageSource
    from asyncrl.tasks.prompt import ChatPrompt

    says, red = Says(say("B")), encoded("red")
    engine = scripted(says, vocabulary=VOCABULARY)
    content = [{"type": "text", "text": "Where?"}, {"type": "image"}]
    prompt = ChatPrompt([{"role": "user", "content": content}], "", images=[ImageSource(red)])
    async with opened(engine, sighted.tokenizer, images=sighted.images(), **SIGHTED) as (
        coordinator, client,
    ):  # fmt: skip
        await engine.load(0, None)
        coordinator.play(2).messages = messages_with_images(prompt)
        got = (await client.get("/v1/sessions/r2-1/messages")).json()["messages"]
        path = CHAT.replace("r1-1", "r2-1")
        assert (await client.post(path, json=asked(CHAT, *got))).status_code == 200
    ((ids, _),) = seen(says.requests)
    assert ids == [*b"Where?", START_ID, *[-1] * 4, STOP_ID, ord("\n")]


def test_bodies_with_images_are_bounded(sighted: Sighted) -> None:
    from asyncrl.agents.gateway.gateway_settings import Settings

    blind = Settings(MODEL, 100, 264)
    assert blind.most_bytes == blind.body_bytes
    assert msgspec.structs.replace(blind, blind="").most_bytes < blind.body_bytes + 2**25
