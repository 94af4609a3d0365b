"""Images of prompts: what data may say, what is decoded, and what is refused in one sentence."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_set import DataSet, digest_of
from asyncrl.tasks.data.data_task import DataTask
from asyncrl.tasks.foreign_process import ENDS, CallFailed, ForeignProcess
from asyncrl.tasks.images.image_decoder import decoded_image, image_bytes
from asyncrl.tasks.images.image_source import ImageSource, beside, images_of
from asyncrl.tasks.images.pixels import image_hash, pixels_of, written_png
from asyncrl.tasks.prompt import ChatPrompt
from asyncrl.tasks.text import Tokenizer

if os.environ.get("CI"):
    import PIL.Image as Pillow
else:
    Pillow = pytest.importorskip("PIL.Image", reason="images need Pillow (the extra vision)")

NOISE = np.random.default_rng(3).integers(0, 255, (20, 30, 3), dtype=np.uint8)
SMOOTH = np.stack([np.add.outer(np.arange(20), 3 * np.arange(30))] * 3, axis=-1).astype(np.uint8)


def read_image(source: ImageSource) -> Any:
    return decoded_image(image_bytes(source))


def encoded(form: str, pixels: Any = NOISE, **options: Any) -> bytes:
    file, image = io.BytesIO(), pixels
    if isinstance(pixels, np.ndarray):
        image = Pillow.fromarray(pixels)
    image.save(file, form, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def claiming(width: int, height: int, data: bytes = b"", *more: bytes) -> bytes:
    """A PNG that says what it likes about its size."""
    head = chunk(b"IHDR", struct.pack(">II5B", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP", "TIFF"])
def test_pixels_are_those_that_were_encoded(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    assert (decoded_image(encoded(form, **options)) == NOISE).all()


def test_an_image_is_what_a_viewer_shows() -> None:
    turned = Pillow.Exif()
    turned[274] = 6  # a quarter to the right
    upright = decoded_image(encoded("JPEG", SMOOTH, exif=turned, quality=95)).astype(int)
    assert upright.shape == (30, 20, 3) and abs(upright - np.rot90(SMOOTH, -1)).max() < 12
    ink = decoded_image(encoded("JPEG", Pillow.fromarray(SMOOTH).convert("CMYK"), quality=95))
    assert abs(ink.astype(int) - SMOOTH).max() < 12
    frames = [Pillow.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for form, how in (("GIF", {}), ("WEBP", {"lossless": True})):
        moving = encoded(form, frames[0], save_all=True, append_images=frames[1:], **how)
        assert (decoded_image(moving) == (255, 0, 0)).all()
    clear = Pillow.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert (decoded_image(encoded("PNG", clear)) == 255).all()
    grey = Pillow.fromarray(np.full((4, 4), 32896, np.uint16))
    assert abs(decoded_image(encoded("PNG", grey)).astype(int) - 128).max() <= 1
    half = np.full((4, 4), 0.5, np.float32)
    for white, shown in ((1, 127), (255, 0)):  # of shares, and of numbers up to 255
        given = np.append(half, np.full((1, 4), white, np.float32), axis=0)
        assert decoded_image(encoded("TIFF", given))[[0, -1], 0, 0].tolist() == [shown, 255]


def bomb_of_text() -> bytes:
    """256 MiB in 255 KiB; they take most of a second, which only who needs them waits for."""
    return claiming(4, 4, bytes(52), chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**28))))


SENTENCES: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "nothing": (b"", "none of PNG"),
    "text": (b"<svg onload=alert(1)>", "none of PNG"),
    "half a PNG": (encoded("PNG")[:300], "truncated"),
    "a drawing": (b"<svg/>", "none of PNG"),
    "a document": (b"%PDF-1.4", "none of PNG"),
    "half a JPEG": (encoded("JPEG")[:300], "runcated"),
    "a bomb by its size": (claiming(50_000, 50_000), "exceeds limit"),
    "more pixels than allowed": (claiming(5000, 5000), "25000000|5000 × 5000 pixels"),
    "a bomb of text": (bomb_of_text, "too large"),
    "no numbers": (
        lambda: encoded("TIFF", np.array([[0.5, np.nan]], np.float32)),
        "no finite numbers",
    ),
    "no width": (claiming(0, 4), "none of PNG"),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_what_cannot_be_decoded_is_one_sentence_and_the_next_image_is(kind: str) -> None:
    given, says = SENTENCES[kind]
    data = given if isinstance(given, bytes) else given()
    with pytest.raises(LookupError, match=says) as caught:
        decoded_image(data)
    assert "\n" not in str(caught.value) and "0x" not in str(caught.value)
    assert (decoded_image(encoded("PNG")) == NOISE).all()


@given(st.binary(max_size=40), st.integers(0, 700))
def test_damaged_bytes_are_an_image_or_a_sentence(noise: bytes, at: int) -> None:
    whole = encoded("PNG", SMOOTH)
    try:
        pixels = decoded_image(whole[:at] + noise + whole[at + len(noise) :])
    except LookupError:
        return
    assert pixels.ndim == 3


def _opens(_: bytes) -> bytes:
    Path("/etc/passwd").read_bytes()
    return b"read"


def _writes(_: bytes) -> bytes:
    Path("/tmp/asyncrl-never").write_bytes(b"1")
    return b"written"


@pytest.mark.parametrize("does", [_opens, _writes])
def test_the_decoder_opens_no_file(does: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CallFailed, match=r"ermission denied|not permitted"):
        ForeignProcess(does, confined=True, ends=ENDS).call(b"")


def test_kept_images_are_pngs_that_any_viewer_reads() -> None:
    png = written_png(NOISE)
    assert (pixels_of(png) == NOISE).all() and written_png(pixels_of(png)) == png
    assert (np.asarray(Pillow.open(io.BytesIO(png))) == NOISE).all()
    assert image_hash(png) != image_hash(written_png(SMOOTH))
    for bad in (b"", png[:-1], png + b"x", encoded("PNG"), claiming(9, 9), claiming(2**20, 2**20)):
        with pytest.raises(ValueError, match="no image of a run"):
            pixels_of(bad)


# -------------------------------------------------------------------------------------- data


def rows(tmp_path: Path, *row: dict[str, Any]) -> DataSet:
    (tmp_path / "screens").mkdir(exist_ok=True)
    (tmp_path / "screens" / "7.png").write_bytes(encoded("PNG"))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"answer": "left", **one}) + "\n" for one in row))
    return DataSet(str(path))


TEXT = base64.b64encode(encoded("PNG")).decode()
URL = "data:image/png;base64," + base64.b64encode(encoded("PNG")).decode()
IMAGE, WHICH = {"type": "image"}, {"type": "text", "text": "Which?"}
FORMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a column": ({"prompt": "Which?", "image": "screens/7.png"}, [IMAGE, WHICH]),
    "a list": ({"question": "Which?", "images": [{"path": "screens/7.png"}]}, [IMAGE, WHICH]),
    "a data URL": ({"prompt": "Which?", "image": URL}, [IMAGE, WHICH]),
    "base64 alone": ({"prompt": "Which?", "image": TEXT}, [IMAGE, WHICH]),
    "base64 as bytes": ({"prompt": "Which?", "image": {"bytes": TEXT}}, [IMAGE, WHICH]),
    "base64 in lines": (
        {"prompt": "Which?", "image": "DATA:;base64," + TEXT[:76] + "\n" + TEXT[76:]},
        [IMAGE, WHICH],
    ),
    "a mark": ({"prompt": "Which?<image>", "images": ["screens/7.png"]}, [WHICH, IMAGE]),
    "a part": (
        {"messages": [{"role": "user", "content": [{**IMAGE, "image": "screens/7.png"}, WHICH]}]},
        [IMAGE, WHICH],
    ),
    "OpenAI's part": (
        {
            "prompt": [
                {
                    "role": "user",
                    "content": [WHICH, {"type": "image_url", "image_url": {"url": URL}}],
                }
            ]
        },
        [WHICH, IMAGE],
    ),
    "a part with a column": (
        {"prompt": [{"role": "user", "content": [IMAGE, WHICH]}], "images": [URL]},
        [IMAGE, WHICH],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_of_rows(tmp_path: Path, form: str) -> None:
    row, content = FORMS[form]
    row = {"ground_truth": "left", **row} if "messages" in row else row
    data = rows(tmp_path, row)
    read = data.read(0)
    assert read.prompt == [{"role": "user", "content": content}]
    assert read.answer == "left"
    (image,) = read.images
    assert (read_image(beside(data.folder(0), image)) == NOISE).all()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a path of Windows": ({"image": "screens\\7.png"}, "backslashes: write /"),
    "a URL of a store": ({"image": "s3://bucket/7"}, "not of http or https"),
    "a data URL of text": ({"image": "data:image/png,abc"}, "no data URL in base64"),
    "a mark and no image": ({"prompt": "<image>?", "image": None}, "want 1 image, and it has 0"),
    "another folder": ({"image": "../7.png"}, "stays in it"),
    "an absolute path": ({"image": "/etc/7.png"}, "stays in it"),
    "a URL of a file": ({"image": "file:///etc/7.png"}, "no path"),
    "no bytes": ({"image": "data:image/png;base64,"}, "is empty"),
    "no base64": ({"image": "data:image/png;base64,!!"}, "no base64"),
    "too many marks": ({"prompt": "<image><image>", "image": "7.png"}, "want 2 images.*has 1"),
    "no image": ({"prompt": [{"role": "user", "content": [IMAGE]}]}, "want 1 image,.*has 0"),
    "too many": ({"images": ["7.png"] * 17}, "17 images"),
    "ids": ({"prompt": [5, 6], "image": "7.png"}, "ids"),
    "the assistant's": (
        {"prompt": [WHICH | {"role": "user", "content": "?"}, {"role": "assistant", "content": [
            {**IMAGE, "image": "7.png"}]}, {"role": "user", "content": "?"}]},
        "the assistant's, and has an image",
    ),
    "a video": (
        {"prompt": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]},
        "neither text nor image",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_row_whose_image_is_not_one_is_named(tmp_path: Path, kind: str) -> None:
    row, says = BAD[kind]
    with pytest.raises(TaskError, match=f"line 1: its .*{says}|line 1: it .*{says}"):
        rows(tmp_path, {"prompt": "Which?", **row}).read(0)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(LookupError, match=r"7\.png cannot be read: No such file"):
        read_image(ImageSource(path="/nowhere/7.png", folder="/nowhere"))


@pytest.mark.parametrize(
    "column",
    [
        {"images": ["a.png", None]},
        {"images": [5, {"path": "a.png"}]},
        {"image": "https://example.org/render?id=7"},
        {"image": {"url": "https://example.org/7"}},
    ],
)
def test_an_image_among_others_is_not_left_out_without_a_word(column: dict[str, Any]) -> None:
    with pytest.raises(LookupError, match="its image is"):
        assert not [beside(None, image) for image in images_of(column)]
    column = {"images": ["a.png", "screens/b"]}
    assert [one.path for one in images_of(column)] == ["a.png", "screens/b"]


def test_a_link_out_of_the_data_s_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "7.png").write_bytes(encoded("PNG"))
    (tmp_path / "data" / "7.png").symlink_to(tmp_path / "7.png")
    (tmp_path / "data" / "8.png").symlink_to("8.png")
    (tmp_path / "data" / "all").symlink_to(tmp_path)
    for path, says in (("7.png", "link out of"), ("all/7.png", "link out of"), ("8.png", "levels")):
        with pytest.raises(LookupError, match=says):
            image_bytes(beside(tmp_path / "data", ImageSource(path=path)))
    (tmp_path / "data" / "8.png").unlink()
    (tmp_path / "data" / "8.png").write_bytes(encoded("PNG"))
    (tmp_path / "data" / "9.png").symlink_to("8.png")
    assert image_bytes(beside(tmp_path / "data", ImageSource(path="9.png"))) == encoded("PNG")


def test_a_container_s_image_is_none_of_the_prompt_s(tmp_path: Path) -> None:
    assert rows(tmp_path, {"prompt": "Which?", "image": "python:3.12"}).read(0).images == ()


def test_the_same_question_about_another_image_is_another_prompt(tmp_path: Path) -> None:
    data = rows(tmp_path, *({"prompt": "Which?", "image": name} for name in ("a.png", "b.png")))
    assert digest_of(data.read(0)) != digest_of(data.read(1))


def test_a_task_gives_prompts_with_images_and_judges_answers_without_them(tmp_path: Path) -> None:
    row = {"prompt": "Which?", "image": "screens/7.png"}
    rows(tmp_path, *({**row, "prompt": f"Which {n}?"} for n in range(3)))
    task = DataTask(TaskConfig(name="data", path=str(tmp_path / "rows.jsonl"), eval_size=1))
    prompt = task.prompt("train", 1)
    assert isinstance(prompt, ChatPrompt)
    found = ImageSource(path=str(tmp_path / "screens" / "7.png"), folder=str(tmp_path))
    assert prompt.images == [found]
    assert "<image>Which 1?" in prompt.text
    (tmp_path / "screens" / "7.png").unlink()
    assert task.verify("train", 1, "left") == 1.0


def test_bytes_of_parquet_are_images(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    import pyarrow as arrow

    table = arrow.table(
        {"prompt": ["Which?"], "image": [{"bytes": encoded("PNG"), "path": "x"}], "answer": ["1"]}
    )
    pyarrow.write_table(table, tmp_path / "rows.parquet")
    (image,) = DataSet(str(tmp_path / "rows.parquet")).read(0).images
    assert (read_image(image) == NOISE).all()


def test_a_model_of_text_refuses_an_image_by_name(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    prompt = ChatPrompt([{"role": "user", "content": [IMAGE, WHICH]}], "?", [], [ImageSource(b"x")])
    with pytest.raises(TaskError, match="has an image, and this model reads only text"):
        Tokenizer(tmp_path).encode_shown(prompt)
