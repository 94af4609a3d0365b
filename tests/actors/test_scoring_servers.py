"""Servers that score for the trainer: their numbers belong to the sampled tokens, one that fails is
asked again, and one that stays away ends the trainer in time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import httpx2
import numpy as np
import pytest
import trio
import trio.testing

from asyncrl.actors import scoring_servers
from asyncrl.actors.scoring_servers import ScoringServers
from asyncrl.bundled import bundled_model
from asyncrl.config import ConfigError, load
from asyncrl.engines.servers.errors import Misread, RequestRefused
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks.text import Tokenizer

URL = "http://fake:1"
SAMPLES = [
    Sample(1, 0, 2, 3, 0.0, [Span(0, 2, 5)]),
    Sample(2, 0, 1, 0, 0.0, []),
    Sample(3, 0, 2, 5, 0.0, [Span(0, 2, 4), Span(1, 6, 7)]),
]
IDS = np.arange(13, dtype=np.int32)
BATCH = MicroBatch(0, 0, SAMPLES, {0: [0.0, 0.0, 0.0]})


class Scorer(httpx2.AsyncBaseTransport):
    """A server that gives id i the log-probability -i, after `refusals` connections that break."""

    def __init__(
        self,
        refusals: float = 0,
        status: int = 200,
        shift: int = 0,
        text: Callable[[int], str | None] = str,
    ) -> None:
        self.refusals, self.status, self.shift, self.text = refusals, status, shift, text
        self.at_once = self.most = 0
        self.largest: list[int] = []  # id of each request

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(await request.aread())
        ids = asked["input_ids"]
        self.largest.append(max(ids))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await trio.sleep(0.1)
        self.at_once -= 1
        if self.refusals > 0:
            self.refusals -= 1
            raise httpx2.ConnectError("refused")
        every = [
            [
                None if at == 0 else -float(i),
                i + self.shift,
                self.text(i) if asked.get("return_text_in_logprobs") else None,
            ]
            for at, i in enumerate(ids)
        ]
        return httpx2.Response(
            self.status, json={"text": "", "meta_info": {"input_token_logprobs": every}}
        )


async def scores(
    server: Scorer, batch: MicroBatch = BATCH, ids: np.ndarray = IDS, patience_s: float = 60.0
) -> np.ndarray:
    async with SglangClient.open(URL, transport=server) as client:
        servers = ScoringServers({"teacher": client}, Waits(), patience_s)
        return (await servers.scores(batch, (memoryview(ids.tobytes()),)))["teacher"]


async def test_numbers_are_those_of_the_sampled_tokens(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The second sample has no response; of the third, two tokens were given."""
    found = await scores(Scorer())
    assert found.dtype == np.float32 and found.tolist() == [-2, -3, -4, -8, -9, -12]


async def test_one_that_fails_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    assert (await scores(Scorer(refusals=3))).tolist() == [-2, -3, -4, -8, -9, -12]


async def test_one_that_stays_away_ends_the_wait_by_its_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    start = trio.current_time()
    with pytest.raises(WaitExpired, match="http://fake:1 waited 60 s for scores of the teacher"):
        await scores(Scorer(refusals=math.inf))
    assert trio.current_time() - start == pytest.approx(60.0)


async def test_one_that_refuses_or_scores_others_is_an_error_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for status in (400, 503):
        with pytest.raises(RequestRefused):
            await scores(Scorer(status=status))
    with pytest.raises(Misread):
        await scores(Scorer(shift=1))


async def test_a_sequence_that_it_refuses_has_no_scores_if_it_takes_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Picky(Scorer):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            ids = json.loads(await request.aread())["input_ids"]
            if max(ids) == 12:
                return httpx2.Response(413, json={"message": "too long"})
            return await super().handle_async_request(request)

    found = await scores(Picky())
    assert found[:3].tolist() == [-2, -3, -4] and np.isnan(found[3:]).all()


async def test_so_many_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    count = 3 * scoring_servers.AT_A_TIME
    samples = [Sample(n, 0, 1, 1, 0.0, [Span(0, 1, 2)]) for n in range(count)]
    batch = MicroBatch(0, 0, samples, {0: [0.0] * count})
    server = Scorer()
    assert len(await scores(server, batch, np.arange(2 * count, dtype=np.int32))) == count
    assert server.most == scoring_servers.AT_A_TIME


async def test_settings_name_the_servers() -> None:
    config = load(None, ["teacher.coefficient=1", "teacher.path=m", f"teacher.server={URL}"], {})
    async with ScoringServers.open(config, Waits()) as servers:
        empty = MicroBatch(0, 0, [], {})
        assert {name: len(of) for name, of in (await servers.scores(empty, ())).items()} == {
            "teacher": 0
        }
    async with ScoringServers.open(load(None, [], {}), Waits()) as servers:
        assert await servers.scores(BATCH, ()) == {}


FRAME = ["Q: ", " A:"]
"""Tokens that the model that learns has beside bytes."""


async def refusal(server: Scorer, folder: Path, patience_s: float = 60.0) -> str:
    """Sentence a server is refused with where the model that learns has FRAME; empty where it is
    not."""
    bundled_model.write_tokenizer(folder, FRAME)
    async with SglangClient.open(URL, transport=server) as client:
        servers = ScoringServers({"teacher": client}, Waits(), patience_s)
        try:
            await servers.refuse_other_vocabularies(Tokenizer(folder), patience_s)
        except ConfigError as error:
            return str(error)
    return ""


def texts_of(folder: Path, frame: list[str]) -> Callable[[int], str | None]:
    """The texts that a server of such a tokenizer gives: special tokens by name."""
    folder.mkdir()
    bundled_model.write_tokenizer(folder, frame)
    tokenizer = Tokenizer(folder)
    return lambda number: tokenizer.decode([number], special=True)


async def test_a_server_of_the_same_vocabulary_is_taken_also_where_it_comes_late(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    same = Scorer(refusals=3, text=texts_of(tmp_path / "its", FRAME))
    assert await refusal(same, tmp_path) == ""
    assert max(same.largest) == Tokenizer(tmp_path).vocabulary - 1
    larger = Scorer(text=texts_of(tmp_path / "larger", [*FRAME, "more"]))
    assert await refusal(larger, tmp_path) == ""
    spaced = texts_of(tmp_path / "spaced", FRAME)
    stripped = Scorer(text=lambda number: (spaced(number) or "").replace(" ", ""))
    assert await refusal(stripped, tmp_path) == "", "as some tokenizers clean up"


async def test_a_server_of_another_vocabulary_is_refused_in_a_sentence(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    text = await refusal(Scorer(text=texts_of(tmp_path / "its", [" A:", "Q: "])), tmp_path)
    assert text.startswith("teacher.server is 'http://fake:1', and its vocabulary differs")
    assert "is ' A:' there and 'Q: ' here" in text and text.endswith("the same tokenizer.")
    smaller = Scorer(text=texts_of(tmp_path / "smaller", []))
    assert "is '' there and 'Q: ' here" in await refusal(smaller, tmp_path)
    early = Scorer(text=lambda number: f"t{number}")
    assert "vocabulary differs" in await refusal(early, tmp_path)
    assert max(early.largest) < 64, "before it is asked for what it may not have"
    assert "start it with its tokenizer" in await refusal(Scorer(text=lambda _: None), tmp_path)
    assert "does not take the ids" in await refusal(Scorer(status=400), tmp_path)


async def test_a_server_that_does_not_come_ends_the_wait_for_its_vocabulary(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    with pytest.raises(WaitExpired, match="for vocabulary of the teacher"):
        await refusal(Scorer(refusals=math.inf), tmp_path)
