"""The port at which machines join, against agents that are of another version, hostile, silent, or
gone: what they cost is themselves."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from train_support import wait_for

from asyncrl import messages as m
from asyncrl.config import load, read, render
from asyncrl.config.errors import BAD_INPUT
from asyncrl.launch.cluster import equipping_turns, joined_machine, machine_link, machines
from asyncrl.launch.cluster.join_token import JoinToken, certify, left_token
from asyncrl.launch.cluster.joined_machine import KILLED, RemoteActor
from asyncrl.launch.cluster.machine_link import UNREAD
from asyncrl.launch.cluster.machines import Machines
from asyncrl.launch.cluster.versions import own_versions
from asyncrl.runtime.ipc.endpoints import connect
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import new_key, read_key, write_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.processes.supervisor import ActorFailed
from asyncrl.runtime.run_dir import COORDINATOR_ADDRESS, INITIAL, JOIN_TOKEN, KEY, RUN_TOML, TLS

pytestmark = pytest.mark.processes

PATIENCE_S = 30.0
FILES = {"config.json": b"{}", "tokenizer.json": b"[]"}
ADDRESS = "tcp:127.0.0.1:9"
RANKS, RANK_0 = 4, "tcp:127.0.0.1:8"


class Head:
    """A launcher's side, and what it noted."""

    def __init__(
        self, run: Path, machines: Machines, notes: list[str], stop: Callable[[], None]
    ) -> None:
        self.run, self.machines, self.notes, self.stop = run, machines, notes, stop
        self.token = JoinToken.read(run / JOIN_TOKEN)
        self.theirs = run.parent / "theirs"
        self.theirs.mkdir(mode=0o700)
        self.token.tls.write(self.theirs)

    async def connected(self) -> Link:
        """The link of an agent that has said nothing."""
        return await connect(self.token.launcher, self.token.key, tls=Tls.of(self.theirs / TLS))

    @contextlib.asynccontextmanager
    async def agent(
        self,
        name: str = "one",
        cores: int = 2,
        places: int | None = None,
        role: m.JoinedRole = "rollout",
        agent: str = "",
        tags: tuple[str, ...] = (),
    ) -> AsyncIterator[Link]:
        """The link of an agent that has all it needs, and takes part. It joined before where it
        is the `agent` of an earlier one."""
        async with await self.connected() as link:
            await link.send(m.Join(name, agent or new_id(), cores, own_versions(), role, tags))
            admitted = await said(link)
            assert isinstance(admitted, m.MachineAdmitted) and admitted.files == len(FILES)
            assert admitted.room == {"rollout": 2, "trainer": RANKS // 2, "reward": 3}[role]
            assert list(admitted.origins) == (["reasoning-gym"] if role == "reward" else [])
            for name, contents in FILES.items():
                message, (buffer,) = await after_beats(link)
                assert message == m.ModelFile(name) and bytes(buffer) == contents
            before = len(self.notes)
            await link.send(m.Equipped(places))
            await self.until_noted(before)
            yield link

    async def until_noted(self, before: int) -> None:
        """Wait for a note after the first `before`."""
        look = partial(wait_for, "a note", lambda: len(self.notes) > before)
        await trio.to_thread.run_sync(look)

    async def until(self, count: int) -> None:
        """Wait until so many machines take part."""
        look = partial(wait_for, f"{count} machines", lambda: self.machines.count == count)
        await trio.to_thread.run_sync(look)


def new_id() -> str:
    """The id of an agent that joins for the first time."""
    return secrets.token_hex(16)


async def after_beats(link: Link) -> tuple[m.Message, list[memoryview]]:
    """The next message that is no `Alive`."""
    with trio.fail_after(PATIENCE_S):
        while isinstance((found := await link.receive())[0], m.Alive):
            pass
    return found


async def said(link: Link) -> m.Message:
    return (await after_beats(link))[0]


async def ended(link: Link) -> None:
    """The launcher hangs up."""
    with trio.fail_after(PATIENCE_S), pytest.raises((EndOfStream, LinkError)):
        while True:
            await link.receive()


@pytest.fixture
async def head(nursery: trio.Nursery, tmp_path: Path) -> Head:
    return await opened(nursery, tmp_path)


@pytest.fixture
async def of_trainer(nursery: trio.Nursery, tmp_path: Path) -> Head:
    """Half of the trainer's ranks are on a machine that joins."""
    return await opened(nursery, tmp_path, "cluster.trainer_agents=1", f"train.ranks={RANKS}")


async def opened(nursery: trio.Nursery, tmp_path: Path, *sets: str) -> Head:
    run, notes = tmp_path / "run", list[str]()
    (run / INITIAL).mkdir(parents=True)
    for name, contents in {**FILES, "model.safetensors": b"weights"}.items():
        (run / INITIAL / name).write_bytes(contents)
    (run / RUN_TOML).write_text("")
    (run / COORDINATOR_ADDRESS).write_text(ADDRESS)
    write_key(run / KEY, new_key())
    config = load(None, ["cluster.kind=agents", "rollout.actors=2", *sets], {})
    machines = Machines(config, run, notes.append)
    serving = trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[object]) -> None:
        with serving:
            await machines.serve(task_status=task_status)

    await nursery.start(serve)
    machines.prepared()
    return Head(run, machines, notes, serving.cancel)


def actors_of(head: Head, count: int = 2) -> list[RemoteActor]:
    return [head.machines.start("rollout", index, 0, resume=False) for index in range(count)]


# ------------------------------------------------------------------------------ who keeps its word


async def test_an_actor_waits_for_a_machine_and_its_end_is_told_once(head: Head) -> None:
    [actor] = actors_of(head, 1)
    async with head.agent() as link:
        assert await said(link) == m.StartActor("rollout", 0, 0, False, ADDRESS)
        await link.send(m.ActorExited("rollout", 7, 0, 0, "there is no such actor"))
        await link.send(m.ActorExited("rollout", 0, 0, 3, "its last words"))
        await link.send(m.ActorExited("rollout", 0, 0, 4, "once more"))
        with trio.fail_after(PATIENCE_S):
            assert await actor.wait() == 3 and actor.tail() == "its last words"
        assert head.machines.count == 1


async def test_machines_of_one_name_are_told_apart_and_share_the_actors(head: Head) -> None:
    async with head.agent() as one, head.agent() as other:
        actors_of(head)
        started = {(await said(link)).index for link in (one, other)}  # type: ignore[attr-defined]
        assert started == {0, 1}
        assert [note.partition(" takes")[0] for note in head.notes] == [
            "Machine one",
            "Machine one-2",
        ]


async def test_an_agent_that_joins_again_replaces_its_link_whose_cut_was_not_noticed(
    head: Head,
) -> None:
    """As over a bad network: the agent knew of the cut before the launcher did."""
    [actor] = actors_of(head, 1)
    own_id = new_id()
    async with head.agent("one", agent=own_id) as cut:
        assert isinstance(await said(cut), m.StartActor)
        async with head.agent("one", agent=own_id) as again:
            with trio.fail_after(PATIENCE_S):
                assert await actor.wait() == KILLED and actor.displaced
            await ended(cut)
            assert head.machines.count == 1
            actors_of(head, 1)
            assert isinstance(await said(again), m.StartActor)
    assert [note for note in head.notes if "joined again" in note] == [
        "Machine one is lost, with 1 actors: its agent joined again."
    ]
    assert sum("Machine one takes part" in note for note in head.notes) == 2


async def test_a_machine_has_no_more_actors_than_gpus_for_them(head: Head) -> None:
    async with head.agent("small", cores=64, places=1) as small:
        actors_of(head)
        first = await said(small)
        assert isinstance(first, m.StartActor)
        async with head.agent("other", places=8) as other:
            second = await said(other)
            assert isinstance(second, m.StartActor) and second.index != first.index
            third = head.machines.start("rollout", 2, 0, resume=False)
            assert (await said(other)).index == 2  # type: ignore[attr-defined]
            fourth = head.machines.start("rollout", 3, 0, resume=False)
            await other.send(m.MachineLeaving())
            await head.until(1)
            assert third.machine is not None and fourth.machine is not None
        await head.until(1)
        waiting = head.machines.start("rollout", 4, 0, resume=False)
        await small.send(m.ActorExited("rollout", first.index, 0, 0, ""))
        assert await said(small) == m.StartActor("rollout", 4, 0, False, ADDRESS)
        assert waiting.machine is not None


async def test_machines_with_too_few_gpus_are_named_before_the_start(head: Head) -> None:
    async with head.agent("small", places=1):
        with trio.fail_after(PATIENCE_S), pytest.raises(ActorFailed) as refused:
            await head.machines.complete()
        assert refused.value.code == BAD_INPUT
        assert "GPUs for fewer than the 2 rollout actors (small: 1)" in refused.value.traceback
        async with head.agent("other", places=1):
            await head.machines.complete()


async def test_each_machine_has_actors_of_its_own_role(of_trainer: Head) -> None:
    head, start = of_trainer, partial(of_trainer.machines.start, resume=False)
    ranks = [start("trainer", index, 0, rank_0=RANK_0) for index in (2, 3)]
    async with head.agent("engines") as engines:
        [engine] = actors_of(head, 1)
        assert await said(engines) == m.StartActor("rollout", 0, 0, False, ADDRESS)
        assert [rank.machine for rank in ranks] == [None, None]
        with trio.move_on_after(0.1) as waits:
            await head.machines.complete()
        assert waits.cancelled_caught
        async with head.agent("ranks", places=2, role="trainer") as trains:
            started = [await said(trains) for _ in ranks]
            settings = render(read(head.run / RUN_TOML))  # those of this life
            assert 'kind = "local"' in settings
            assert started == [
                m.StartActor("trainer", index, 0, False, ADDRESS, RANK_0, settings)
                for index in (2, 3)
            ]
            await head.machines.complete()
            assert head.machines.count_for("trainer") == head.machines.count_for("rollout") == 1
            assert engine.machine is not None and engine.machine.name == "engines"
        await head.until(1)
        for rank in ranks:
            with trio.fail_after(PATIENCE_S):
                assert await rank.wait() == KILLED and rank.displaced
        await head.machines.complete()  # a run goes on with the ranks that are left
    assert "Machine ranks takes part, with 2 cores, for the role trainer." in head.notes
    assert any("Machine ranks is lost, with 2 actors" in note for note in head.notes)


async def test_a_machine_whose_rank_fails_again_and_again_is_refused_and_another_waited_for(
    of_trainer: Head,
) -> None:
    machines = of_trainer.machines
    async with of_trainer.agent("ranks", role="trainer") as trains:
        rank = machines.start("trainer", 2, 0, resume=False, rank_0=RANK_0)
        await said(trains)
        machines.leave_out(rank)
        while not isinstance(refused := await said(trains), m.JoinRefused):
            pass
        why = "machine ranks takes no part: trainer-2 failed there repeatedly"
        assert refused.reason == why and machines.count_for("trainer") == 0
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machines.come, "trainer", 1)
            async with of_trainer.agent("ranks", role="trainer"):  # it may join again
                await of_trainer.until(1)
    assert f"{why}." in of_trainer.notes


async def test_a_run_whose_reward_actors_are_elsewhere_does_not_go_on_without_them(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    head = await opened(nursery, tmp_path, "cluster.reward_agents=1", "reward.actors=3")
    judge = head.machines.start("reward", 0, 0, resume=False)
    async with head.agent("engines"):
        async with head.agent("judges", role="reward") as judges:
            assert await said(judges) == m.StartActor("reward", 0, 0, False, ADDRESS)
            await head.machines.complete()
        await head.until(1)
        with trio.fail_after(PATIENCE_S):
            assert await judge.wait() == KILLED and judge.displaced
        with trio.move_on_after(0.1) as waits:
            await head.machines.complete()
        assert waits.cancelled_caught


async def test_too_few_machines_for_the_trainer_are_said_with_what_to_run(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    sets = "cluster.trainer_agents=2", "train.ranks=3", "cluster.join_s=0.2"
    head = await opened(nursery, tmp_path, *sets)
    async with head.agent("engines"):
        with trio.fail_after(PATIENCE_S), pytest.raises(ActorFailed) as refused:
            await head.machines.complete()
    assert refused.value.code == BAD_INPUT
    assert "0 of 2 machines (cluster.trainer_agents) joined" in refused.value.traceback
    assert "asyncrl agent --join join.token --for trainer`" in refused.value.traceback


async def test_a_machine_that_is_not_equipped_yet_hears_that_the_run_is_over(head: Head) -> None:
    """Else its agent would try for two minutes to join a run that was refused."""
    async with await head.connected() as link:
        await link.send(m.Join("late", new_id(), 2, own_versions()))
        assert isinstance(await said(link), m.MachineAdmitted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(head.machines.dismiss)
            with trio.fail_after(PATIENCE_S):
                while not isinstance(await said(link), m.RunOver):
                    pass
            await link.aclose()


async def test_an_actor_starts_only_on_a_machine_with_the_tag_that_it_needs(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    head = await opened(nursery, tmp_path, 'rollout.needs=["","far"]', "cluster.join_s=0.2")
    first, second = actors_of(head)
    async with head.agent("plain", places=2) as plain:
        assert await said(plain) == m.StartActor("rollout", 0, 0, False, ADDRESS)
        assert second.machine is None
        with trio.fail_after(PATIENCE_S), pytest.raises(ActorFailed) as refused:
            await head.machines.complete()
        assert refused.value.code == BAD_INPUT
        assert refused.value.traceback.startswith(
            "no machine with the tag 'far', which rollout-1 needs (rollout.needs), joined within "
            "0.2 s (cluster.join_s): run `asyncrl agent --join join.token --tag far` on one"
        )
        async with head.agent("tagged", places=1, tags=("far", "other")) as tagged:
            assert await said(tagged) == m.StartActor("rollout", 1, 0, False, ADDRESS)
            assert head.notes[-1].endswith("takes part, with 2 cores, tags far, other.")
            await head.machines.complete()
            first.end(0, "")


async def test_places_with_a_tag_are_left_to_actors_that_need_it(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    head = await opened(nursery, tmp_path, 'rollout.needs=["","far"]')
    async with head.agent("a", places=1, tags=("far",)), head.agent("b", places=1):
        first, second = actors_of(head)
        assert first.machine is not None and first.machine.name == "b"
        assert second.machine is not None and second.machine.name == "a"


async def test_a_machine_for_a_trainer_that_is_all_here_is_refused_by_name(head: Head) -> None:
    async with await head.connected() as link:
        await link.send(m.Join("ranks", new_id(), 2, own_versions(), "trainer"))
        refused = await said(link)
        assert isinstance(refused, m.JoinRefused)
        assert refused.reason.startswith("machine ranks takes no part: it is for the role trainer")
        assert "set cluster.trainer_agents there" in refused.reason
        assert head.machines.count == 0 and head.notes == [f"{refused.reason}."]


async def test_a_machine_that_lacks_what_actors_need_is_refused_by_name(head: Head) -> None:
    async with await head.connected() as link:
        await link.send(m.Join("bare", new_id(), 2, own_versions()))
        await link.send(m.Unequipped("it has no GPU that it may use\x1b[2J."))
        with trio.fail_after(PATIENCE_S):
            while not isinstance(refused := await said(link), m.JoinRefused):
                pass
        await link.send(m.Unequipped("once more"))
        await ended(link)
    assert refused.reason.startswith("machine bare takes no part: it has no GPU that it may use")
    assert head.notes == [f"{refused.reason}."] and "\x1b" not in refused.reason
    assert head.machines.count == 0


async def test_a_machine_that_leaves_gets_no_actor_and_its_actors_are_displaced(
    head: Head,
) -> None:
    [actor] = actors_of(head, 1)
    async with head.agent("one") as one:
        assert isinstance(await said(one), m.StartActor)
        await one.send(m.MachineLeaving())
        await head.until(0)
        assert head.notes[-1] == (
            "Machine one leaves: the work of its 1 actors continues elsewhere."
        )
        later = head.machines.start("rollout", 1, 0, resume=False)
        async with head.agent("two") as two:
            assert (await said(two)) == m.StartActor("rollout", 1, 0, False, ADDRESS)
            await one.send(m.ActorExited("rollout", 0, 0, 143, "it was told to end"))
            with trio.fail_after(PATIENCE_S):
                assert await actor.wait() == 143
            assert actor.displaced and not later.over
    assert not any("Machine one is lost" in note for note in head.notes)


async def test_who_says_twice_that_it_leaves_is_cut_off(head: Head) -> None:
    [actor] = actors_of(head, 1)
    async with head.agent("one") as one:
        await one.send(m.MachineLeaving())
        await one.send(m.MachineLeaving())
        await ended(one)
        with trio.fail_after(PATIENCE_S):
            assert await actor.wait() == KILLED and actor.displaced


async def test_machines_of_a_killed_launcher_come_back_by_the_token_that_they_have(
    head: Head, tmp_path: Path
) -> None:
    """This one removes its token when it ends; the killed one had not."""
    token, config = head.token, load(None, ["cluster.kind=agents", "rollout.actors=2"], {})
    dead = tmp_path / "dead"
    shutil.copytree(head.run, dead)
    assert left_token(dead, "127.0.0.1", 0) is None, "its port is in use"
    head.stop()
    await trio.to_thread.run_sync(
        wait_for, "the token's end", lambda: not (head.run / JOIN_TOKEN).exists()
    )
    write_key(dead / KEY, new_key())
    async with trio.open_nursery() as nursery:
        machines = Machines(config, dead, head.notes.append)
        await nursery.start(machines.serve)
        machines.prepared()
        assert JoinToken.read(dead / JOIN_TOKEN) == token
        async with await head.connected() as link:
            await link.send(m.Join("one", new_id(), 2, own_versions()))
            admitted = await said(link)
            assert isinstance(admitted, m.MachineAdmitted)
            assert admitted.key == read_key(dead / KEY) != token.key, "each launch has a new one"
            for _ in FILES:
                await said(link)
            await link.send(m.Equipped())
            with trio.fail_after(PATIENCE_S):
                await machines.complete()  # one machine of several is enough to go on
        nursery.cancel_scope.cancel()


def test_a_token_is_taken_up_only_where_machines_can_join_by_it(tmp_path: Path) -> None:
    mine, theirs = certify("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    assert left_token(tmp_path, "127.0.0.1", 0) is None, "there is none"
    token = JoinToken(f"tcp:127.0.0.1:{port}", new_key(), theirs)
    token.write(tmp_path / JOIN_TOKEN)
    assert left_token(tmp_path, "127.0.0.1", 0) is None, "the head has no certificate"
    mine.write(tmp_path)
    assert left_token(tmp_path, "127.0.0.1", 0) == token
    assert left_token(tmp_path, "127.0.0.1", port) == token
    assert left_token(tmp_path, "127.0.0.1", port + 1) is None, "another port is set"
    assert left_token(tmp_path, "127.0.0.2", 0) is None, "another address is set"
    (tmp_path / JOIN_TOKEN).chmod(0o644)
    assert left_token(tmp_path, "127.0.0.1", 0) is None, "others may have read it"
    (tmp_path / JOIN_TOKEN).write_text("{}")
    assert left_token(tmp_path, "127.0.0.1", 0) is None, "it is none"


# ----------------------------------------------------------------------------- who does not fit in


@pytest.mark.parametrize("name", sorted(own_versions()))
async def test_another_version_is_refused_by_name_and_others_stay(head: Head, name: str) -> None:
    async with head.agent() as link:
        async with await head.connected() as other:
            await other.send(m.Join("old", new_id(), 4, own_versions() | {name: "0.0.1"}))
            refused = await said(other)
        assert isinstance(refused, m.JoinRefused)
        assert f"machine old takes no part: it has {name} 0.0.1, and the" in refused.reason
        assert head.notes[-1] == f"{refused.reason}."
        actors_of(head, 1)
        assert isinstance(await said(link), m.StartActor)


@pytest.mark.parametrize(
    "wrong",
    [
        m.Equipped(),
        m.StartActor("rollout", 0, 0, False, ADDRESS),
        m.RunOver(),
        m.ModelFile("config.json"),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("joined", [False, True])
async def test_who_says_what_no_agent_says_is_lost_and_others_stay(
    head: Head, wrong: m.Message, joined: bool
) -> None:
    async with head.agent("good") as good:
        async with await head.connected() as bad:
            if joined:
                await bad.send(m.Join("bad", new_id(), 2, own_versions()))
                assert isinstance(await said(bad), m.MachineAdmitted)
            await bad.send(wrong)
            if joined and wrong == m.Equipped():
                await head.until(2)
                await bad.send(m.KillActor("rollout", 0, 0))
            await ended(bad)
        await head.until(1)
        actors_of(head, 1)
        assert isinstance(await said(good), m.StartActor)


async def test_bytes_that_are_no_message_cost_their_sender_alone(head: Head) -> None:
    actors = actors_of(head)
    async with head.agent("bad", cores=2**16) as bad:
        assert isinstance(await said(bad), m.StartActor)
        async with head.agent("good") as good:
            await bad._pipe.send([b"\xff" * 4096])
            await ended(bad)
            with trio.fail_after(PATIENCE_S):
                assert [await actor.wait() for actor in actors] == [KILLED, KILLED]
            assert "its machine bad is lost" in actors[0].tail()
            assert all(actor.displaced for actor in actors), "no failure of theirs"
            head.machines.start("rollout", 0, 1, resume=False)
            assert await said(good) == m.StartActor("rollout", 0, 1, False, ADDRESS)
    assert any(note.startswith("Machine bad is lost, with 2 actors: ") for note in head.notes)


@pytest.mark.parametrize("what", ["certificate", "key", "clear"])
async def test_who_has_no_token_gets_no_further(head: Head, what: str, tmp_path: Path) -> None:
    if what == "clear":
        stream = await trio.open_tcp_stream("127.0.0.1", head.token.launcher.port)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with trio.fail_after(PATIENCE_S), contextlib.suppress(trio.BrokenResourceError):
            assert b"HTTP" not in await stream.receive_some()
        await stream.aclose()
    else:
        _, strangers = certify("127.0.0.1")
        wrong = tmp_path / "wrong"
        wrong.mkdir()
        pem = strangers if what == "certificate" else head.token.tls
        msgspec.structs.replace(pem, authority=head.token.tls.authority).write(wrong)
        key = new_key() if what == "key" else head.token.key
        with pytest.raises((LinkError, EndOfStream, ssl.SSLError)):
            link = await connect(head.token.launcher, key, tls=Tls.of(wrong / TLS))
            await link.send(m.Join("stranger", new_id(), 2, own_versions()))
            await link.receive()
    assert not head.notes
    async with head.agent():
        pass


# ------------------------------------------------------------------------------------- who is gone


async def test_where_no_machine_can_come_one_that_is_there_is_enough(head: Head) -> None:
    why = ActorFailed("Ray's driver", 2, "Ray is gone")
    async with head.agent():
        await head.machines.complete()
        head.machines.fail(why)
        await head.machines.complete()
    await head.until(0)
    assert "No more machines can join: Ray is gone." in head.notes
    with trio.fail_after(PATIENCE_S), pytest.raises(ActorFailed, match="Ray is gone"):
        await head.machines.complete()


async def test_a_machine_that_says_nothing_is_lost_with_its_actors(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_link, "SILENCE_S", 0.3)
    async with head.agent():
        actors = actors_of(head)
        with trio.fail_after(PATIENCE_S):
            assert [await actor.wait() for actor in actors] == [KILLED, KILLED]
        await head.until(0)
    assert "Machine one is lost, with 2 actors: it sent nothing for 0.3 s." in head.notes


async def test_a_connection_that_does_not_say_who_it_is_is_closed(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "JOIN_S", 0.2)
    async with await head.connected() as link:
        await ended(link)
    async with head.agent():
        assert head.machines.count == 1


async def test_an_agent_that_does_not_kill_is_given_up(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_machine, "KILL_S", 0.2)
    async with head.agent() as link:
        [actor] = actors_of(head, 1)
        assert isinstance(await said(link), m.StartActor)
        with trio.fail_after(PATIENCE_S):
            assert await actor.kill_group() == KILLED
        assert await said(link) == m.KillActor("rollout", 0, 0)
        await ended(link)
    await head.until(0)
    assert any("it did not end an actor within 0.2 s" in note for note in head.notes)


async def test_few_machines_are_equipped_at_once_and_the_files_are_read_once(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five join and take nothing: each waits for its turn, and is given up."""
    reads, held, most, send = list[Path](), list[joined_machine.Machine](), 0, Machines._queue_files

    def read(model: Path) -> list[tuple[str, bytes]]:
        reads.append(model)
        return [(name, bytes(2**24)) for name in FILES]

    async def counted(
        self: Machines, machine: joined_machine.Machine, files: list[tuple[str, bytes]]
    ) -> None:
        nonlocal most
        held.append(machine)
        most = max(most, sum(not each.gone.is_set() for each in held))
        await send(self, machine, files)

    monkeypatch.setattr(machines, "model_files", read)
    monkeypatch.setattr(equipping_turns, "PLACES", 1)
    monkeypatch.setattr(equipping_turns, "SLOW", 1)
    monkeypatch.setattr(equipping_turns, "TURN_S", 0.1)
    monkeypatch.setattr(machines, "TAKEN_S", 0.5 - 32.0)  # of 32 MiB
    monkeypatch.setattr(Machines, "_queue_files", counted)
    head = await opened(nursery, tmp_path)
    async with contextlib.AsyncExitStack() as links:
        for number in range(5):
            link = await links.enter_async_context(await head.connected())
            await link.send(m.Join(f"{number}", new_id(), 2, own_versions(), "rollout"))
        gone = lambda: bool(reads) and not head.machines._linked  # noqa: E731
        await trio.to_thread.run_sync(partial(wait_for, "the end of all five", gone))
    assert 2 <= most <= 3 and len(reads) == 1 and len(held) == 5


async def test_strangers_write_one_line_of_a_kind(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        for _ in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", head.token.launcher.port)
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            with trio.move_on_after(PATIENCE_S), contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            await stream.aclose()
    assert sum("an agent was refused" in record.message for record in caplog.records) == 1


async def test_an_agent_that_reads_nothing_is_given_up(head: Head) -> None:
    async with head.agent():
        actors = actors_of(head, UNREAD + 4096)
        with trio.fail_after(PATIENCE_S):
            assert {await actor.wait() for actor in actors} == {KILLED}
        await head.until(0)
    assert any("messages unread" in note for note in head.notes)
