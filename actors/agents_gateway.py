"""The gateway of an agents actor, with its agents: the setup around `agents_actor`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from starlette.types import ASGIApp

from asyncrl.actors.agent_openings import AgentOpenings
from asyncrl.actors.agent_pool import AgentAttempt, Told, open_agent_pool
from asyncrl.actors.agent_starts import AgentStarts, starts_of
from asyncrl.actors.agents_actor import Asking, EpisodePlayer, Player, PromptFacts
from asyncrl.actors.elsewhere import ElsewherePool
from asyncrl.actors.entry_images import EntryImages
from asyncrl.actors.episode_sockets import EpisodeSockets, private_folder
from asyncrl.actors.guest_pool import GuestPool
from asyncrl.actors.hosted_games import open_games
from asyncrl.actors.reporting import Reporter
from asyncrl.agents.data_messages import messages_with_images
from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.call_images import CallImages
from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.forwarding import open_forwarding
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.offers import Offers
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.seats import Seats
from asyncrl.agents.gateway.serve import serve
from asyncrl.config import Config
from asyncrl.config.keyed_models import keyed_models
from asyncrl.config.sandbox_hosts import NO_PROVIDER
from asyncrl.config.schema import PLAYED_BY_HOST, PLAYED_ELSEWHERE
from asyncrl.config.schema.other_models import TRAINED
from asyncrl.config.vision import unseen
from asyncrl.files import write_whole
from asyncrl.messages import Play, Split
from asyncrl.runtime.httpd.asgi import HttpRefusal
from asyncrl.runtime.ipc.keys import read_private
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import FETCHED, GATEWAY_KEY, GATEWAY_URL, IMAGES
from asyncrl.sandbox.boxes.box_ends import remote_ends
from asyncrl.sandbox.boxes.box_names import run_id
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin, refuse_without_provider
from asyncrl.sandbox.enders import Enders
from asyncrl.sandbox.opened import SCRATCH
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.entry import entry_of
from asyncrl.tasks.images.fetched_images import FetchedImages
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.vision_model import VisionModel
from asyncrl.tasks.prompt import text_of
from asyncrl.tasks.text import Tokenizer

CALLS = 4
"""Calls that run at a time, for each episode."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeWatch:
    """Sees episodes as they are played: `around` wraps the gateway's application, `ended` is
    called with each attempt that ended by itself, and `warned` with a sentence for what went wrong
    beside an attempt."""

    around: Callable[[ASGIApp], ASGIApp] = lambda app: app
    ended: Callable[[Play, AgentAttempt], None] = lambda play, attempt: None
    warned: Callable[[str], None] = logger.warning


@asynccontextmanager
async def open_episodes(
    config: Config,
    run: Path,
    initial: Path,
    index: int,
    waits: Waits,
    reporter: Reporter,
    watch: EpisodeWatch = EpisodeWatch(),
) -> AsyncIterator[tuple[EpisodePlayer, PlayedSessions]]:
    """Open the agent of the run and the gateway that answers it, at a port of loopback, and at a
    socket for each attempt where programs are in a sandbox. Raises ConfigError where there is no
    such agent, TaskError, OSError where the port is taken, and WorkersLost."""
    agent = config.agent
    sessions = PlayedSessions(read_private(run / GATEWAY_KEY, 1024))
    tokenizer = await trio.to_thread.run_sync(chat_tokenizer, initial)
    task = await trio.to_thread.run_sync(open_task, config.task, config.run.seed)
    prompt = _prompts(task, tokenizer, FetchedImages(run / FETCHED, KeptImages(run / IMAGES)))
    gateway = await _gateway(config, run, initial, tokenizer, sessions, waits, reporter)
    images = await _images(config, run, waits)
    offers = Offers() if agent.run == PLAYED_ELSEWHERE else None
    models = await trio.to_thread.run_sync(keyed_models, agent)
    keeping = DiskWaits(sessions.say, waits)
    seats = Seats(sessions.say, keeping, waits) if agent.run == PLAYED_BY_HOST else None

    def refused(refusal: HttpRefusal) -> None:
        reporter.count(f"agents_refused_{refusal}")

    def told(counter: str, sentence: str) -> None:
        reporter.count(counter)
        if sentence:
            watch.warned(sentence)

    starts = starts_of(waits, agent.actors)
    ends = remote_ends(BoxSettings.of(config.sandbox), run)
    openings = AgentOpenings(index, Enders(run, agent.end, ends), starts, told)
    await openings.end_predecessors()
    async with AsyncExitStack() as opened:
        others = await opened.enter_async_context(open_forwarding(models, waits))
        hosted = await opened.enter_async_context(open_games(config, run, keeping, waits))
        games, calls = (None, others) if hosted is None else hosted
        app = watch.around(application(gateway, sessions, offers, openings, calls, seats))

        async def attend(*, task_status: trio.TaskStatus[str]) -> None:
            await serve(
                app,
                sessions.known,
                waits,
                port=agent.port + index if agent.port else 0,
                refused=refused,
                task_status=task_status,
            )

        sockets = None
        if agent.sandbox != "none":
            folder = opened.enter_context(private_folder(sessions.key, index))
            sockets = EpisodeSockets(folder, app, sessions.known, refused, waits)
        async with (
            _open_player(config, sessions, offers, seats, waits, starts, told) as player,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(starts.run)
            program = offers is None and seats is None and not isinstance(agent.run, str)
            reporter.starts = lambda: starts.counts if program or openings.used else None
            url = await nursery.start(attend)
            logger.info("agents are answered at %s", url)
            if seats is not None:
                await trio.to_thread.run_sync(write_whole, run / GATEWAY_URL, url)
            yield (
                EpisodePlayer(
                    player,
                    sessions,
                    prompt,
                    reporter,
                    url=url,
                    episode_s=agent.episode_s,
                    sockets=sockets,
                    images=images,
                    openings=openings,
                    games=games,
                    asking=Asking(keeping, seats),
                    ended=watch.ended,
                ),
                sessions,
            )
            nursery.cancel_scope.cancel()


async def _gateway(
    config: Config,
    run: Path,
    initial: Path,
    tokenizer: Tokenizer,
    sessions: PlayedSessions,
    waits: Waits,
    reporter: Reporter,
) -> Gateway:
    """The gateway for the model in `initial`."""
    shown = await trio.to_thread.run_sync(call_images, config, run, initial, tokenizer)
    blind, images = (shown, None) if isinstance(shown, str) else ("", shown)
    limits = settings(config, tokenizer.sampled, blind)
    gateway = await trio.to_thread.run_sync(
        Gateway, sessions, tokenizer, limits, waits, reporter.count, images
    )
    if gateway.format.refusal:
        logger.warning("calls that offer tools are refused: %s", gateway.format.refusal)
    elif gateway.format.calls is not None:
        logger.info("tool calls are read in the form of %s", gateway.format.calls.name)
    return gateway


def _prompts(task: Task, tokenizer: Tokenizer, images: FetchedImages) -> PromptFacts:
    """Reads the prompts of a task, one at a time, in a thread."""
    reading = trio.CapacityLimiter(1)

    async def prompt(
        split: Split, prompt_index: int
    ) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        def read() -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
            asked = task.prompt(split, prompt_index)
            text = tokenizer.decode(asked) if isinstance(asked, list) else text_of(asked)
            shown = messages_with_images(asked, images.bytes_of)
            return text, entry_of(task, split, prompt_index), shown

        return await trio.to_thread.run_sync(read, limiter=reading, abandon_on_cancel=True)

    return prompt


@asynccontextmanager
async def _open_player(
    config: Config,
    sessions: PlayedSessions,
    offers: Offers | None,
    seats: Seats | None,
    waits: Waits,
    starts: AgentStarts,
    told: Told,
) -> AsyncIterator[Player]:
    """The run's agents: in processes of this actor, or elsewhere."""
    if offers is not None:
        yield ElsewherePool(offers, waits)
        return
    if seats is not None:
        yield GuestPool(seats, sessions, waits)
        return
    agent = config.agent
    most_s = agent.episode_s + agent.max_calls * agent.call_s
    paths = None if agent.sandbox == "none" else agent.paths
    async with open_agent_pool(
        agent.run, waits, starts, most_s=most_s, paths=paths, told=told
    ) as pool:
        yield pool


async def _images(config: Config, run: Path, waits: Waits) -> EntryImages | None:
    """The images of this actor's agents' sandboxes; None if they open none. Raises ConfigError if
    this machine does not have what the sandboxes need."""
    if config.sandbox.kind == NO_PROVIDER:
        return None
    settings, scratch = BoxSettings.of(config.sandbox), run / SCRATCH
    # also starts what rootless podman keeps, which an agent's process could not: it gains no
    # privilege
    await trio.to_thread.run_sync(refuse_without_provider, settings, scratch)
    return EntryImages(BoxOrigin(settings, run_id(run), str(scratch)), waits)


def chat_tokenizer(initial: Path) -> Tokenizer:
    """The model's tokenizer, with its chat template if it has one."""
    try:
        return Tokenizer(initial, chat=True)
    except TaskError as error:
        logger.info("agents have /v1/completions alone: %s", error)
        return Tokenizer(initial)


def call_images(config: Config, run: Path, initial: Path, tokenizer: Tokenizer) -> CallImages | str:
    """The images of agents' calls, or the reason why they are not read, the end of a sentence."""
    try:
        model = VisionModel(initial)
    except TaskError:
        return "this model reads only text"
    if why := unseen(config):
        return why
    if not tokenizer.has_template:
        return "this model has no chat template"
    placeholder = tokenizer.decode([model.token], special=True)
    return CallImages(KeptImages(run / IMAGES, int(config.run.images_gb * 1e9)), model, placeholder)


def settings(config: Config, vocabulary: int, blind: str) -> Settings:
    """Settings of the gateway: room for all calls of all episodes. The coordinator bounds them.
    `blind` says why images are not read."""
    agent = config.agent
    return Settings(
        model=TRAINED,
        context_tokens=config.engine.context_tokens,
        vocabulary=vocabulary,
        calls=max(256, CALLS * agent.concurrency),
        call_s=agent.call_s,
        as_sampled=agent.history == "as_sampled",
        strict=agent.strict_parameters,
        blind=blind,
        image_hosts=config.task.image_hosts,
    )
