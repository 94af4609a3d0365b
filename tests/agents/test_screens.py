"""The game of screens, and what environments show: the history has each screen as a message, the
newest alone, and a patch in place of a reply."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fake_gateway import fake_gateway

from asyncrl.agents import environments
from asyncrl.agents.examples.find_the_button import LETTERS, PatchedScreens, Screens

Image = pytest.importorskip("PIL.Image", reason="images need Pillow (the extra vision)")


def urls_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The images of a conversation."""
    parts = [
        part for one in messages if isinstance(one["content"], list) for part in one["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def button_of(url: str) -> str:
    """The quarter in which a screen has its button, by its pixels."""
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    screen = Image.open(io.BytesIO(data))
    (place,) = {
        (x // 28, y // 28)
        for x in range(56) for y in range(56) if screen.getpixel((x, y)) == (30, 60, 220)
    }  # fmt: skip
    return LETTERS[place[0] + 2 * place[1]]


@pytest.mark.parametrize(("kind", "most"), [(Screens, 12), (PatchedScreens, 5)])
def test_a_game_of_screens_is_played_to_its_end(kind: type[Screens], most: int) -> None:
    """Whoever always clicks A earns what the screens say, and sees three of them at most."""
    with fake_gateway() as gateway:
        gateway.replies = ["A"]
        facts = gateway.facts(seed=6, entry={"prompt": "7", "answer": "", "screens": 6})
        total = asyncio.run(environments.play(kind(), facts))
    buttons = [button_of(urls_of(messages)[-1]) for messages in gateway.asked]
    shown = [len(urls_of(messages)) for messages in gateway.asked]
    assert shown == [min(3, turn + 1) for turn in range(len(shown))] and max(shown) == 3
    expected, missed = list[float](), False
    for button in buttons:
        expected.append((button == "A") / (2 if missed else 1) / 6)
        missed = kind is Screens and button != "A" and not missed
    assert [reward for reward, _ in gateway.rewards] == expected and len(shown) <= most
    assert total == pytest.approx(sum(expected)) and 0 < total < 1
    history = [one["content"] for one in gateway.asked[-1] if one["role"] == "assistant"]
    assert history == (["A"] * len(history) if kind is Screens else buttons[: len(history)])
    if kind is PatchedScreens:
        assert sum(button != "A" for button in buttons) == 3  # the third miss ended it


def test_a_file_and_bytes_are_shown_too(tmp_path: Any) -> None:
    from asyncrl.agents.shown import Shown, user_message

    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG")
    (tmp_path / "a.jpg").write_bytes(data.getvalue())
    first, second = urls_of([user_message(Shown("?", [tmp_path / "a.jpg", data.getvalue()]))])
    assert first == second and first.startswith("data:image/jpeg;base64,")
    with pytest.raises(TypeError, match="PIL image, bytes or a path, not int"):
        user_message(Shown("?", [7]))
