"""Images for engines on other machines: their bytes cross a link once, before what shows them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from memory_link import memory_links

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.sent_images import SentImages
from asyncrl.actors.reporting import Reporter
from asyncrl.actors.rollout_actor import rollout_actor
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import ScriptedEngine, hashed
from asyncrl.messages import Drain, Hello, Lease, Leases
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import written_png


class Sees(ScriptedEngine):
    """An engine that looks for the images of each request when it comes."""

    store: KeptImages
    missed = 0

    def submit(self, requests: Any) -> None:
        for request in requests:
            assert isinstance(request, Request)
            for name in request.images:
                self.store.png(name)


async def test_one_image_in_64_rollouts_crosses_a_link_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = KeptImages(tmp_path / "here"), KeptImages(tmp_path / "there")
    draw = np.random.default_rng(5)
    noise = [draw.integers(0, 255, (112, 112, 3), dtype=np.uint8) for _ in range(2)]
    names = [here.keep(written_png(pixels)) for pixels in noise]
    ours, theirs = memory_links()
    sizes = EngineOptions(slots=1, context_tokens=16, chunk_tokens=2)
    engine = Sees(hashed(vocab_size=9, stop_id=0), sizes, vocab_size=9)
    engine.store = there
    peer, sent = Peer(Hello("rollout", 0, 0, 1), ours), SentImages(here.png)
    frames = list[int]()
    send = ours.send

    async def counted(message: Any, *buffers: Any) -> None:
        frames.append(sum(memoryview(buffer).nbytes for buffer in buffers))
        await send(message, *buffers)

    ours.send = counted  # type: ignore[method-assign]
    nothing: Any = None  # no publication comes
    actor = partial(rollout_actor, theirs, engine, nothing, Reporter(Waits(), 1e9), keep=there.keep)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor)
            nursery.start_soon(peer.write)
            for rollout in range(64):
                shown = (names[rollout % 2], names[0])
                sent.send(peer, shown)
                lease = Lease(rollout, 1, rollout, "train", 1, 0, 1, 1.0, None, shown)
                peer.send(Leases([lease]), np.zeros(1, np.int32).tobytes())
            sent.send(peer, ["0" * 64])
            peer.send(Drain())
            async for message, _ in ours:
                if type(message).__name__ == "Drained":
                    break
            nursery.cancel_scope.cancel()
    size = sum(len(here.png(name)) for name in names)
    assert sum(frames) == size + 64 * 4  # ids
    assert sorted(path.name for path in there._folder.iterdir()) == sorted(names)
    assert "is not sent an image" in caplog.text
    print(f"{size:,} bytes of two images over a link, of 64 rollouts that show them")
    again = Peer(Hello("rollout", 0, 1, 2), ours)  # its next start gets them again
    SentImages(here.png).send(again, names)
    assert again._outbox.statistics().current_buffer_used == 1
