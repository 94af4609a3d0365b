"""A repository without its history, and hidden tests, in sandboxes that are folders."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from box_support import directories

from asyncrl.sandbox.boxes.box import Box
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.repository import forget_history, hidden_tests, patch_of

SECRET = "the fix of the task"


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    ran = subprocess.run(["git", "-C", folder, *own, *words], capture_output=True, check=True)
    return ran.stdout.decode().strip()


def commit(folder: Path, message: str, **files: str) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def repository(folder: Path) -> str:
    """A repository whose future has the fix in every place in which git keeps something. Returns
    the task's commit."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "first", past="the past")
    (folder / ".gitignore").write_text("built\n")
    task = commit(folder, "task", a="broken\n", b="b\n")
    fix = commit(folder, SECRET, a=f"{SECRET}\n")
    git(folder, "tag", "--annotate", "v2", "--message", SECRET)
    git(folder, "branch", "future")
    git(folder, "remote", "add", "origin", "https://example.org/x.git")
    git(folder, "update-ref", "refs/remotes/origin/main", fix)
    (folder / "a").write_text(SECRET + " again")
    git(folder, "stash")
    git(folder, "gc", "--quiet")
    git(folder, "reset", "--quiet", "--hard", task)
    (folder / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\necho {SECRET} >>$PWD/hooked\n")
    (folder / ".git/hooks/post-checkout").chmod(0o755)
    (folder / "built").write_text("built before")
    (folder / "nested").mkdir()
    git(folder / "nested", "init", "--quiet")
    return task


def everything(folder: Path) -> bytes:
    """All bytes that git has: its files, and its objects unpacked."""
    names = "git cat-file --batch-all-objects --batch --unordered"
    ran = subprocess.run(["sh", "-c", names], cwd=folder, capture_output=True, check=True)
    files = [path.read_bytes() for path in (folder / ".git").rglob("*") if path.is_file()]
    return ran.stdout + b"".join(files)


def test_a_work_copy_has_one_commit_and_nothing_of_the_future(tmp_path: Path) -> None:
    async def both() -> None:
        async with directories(tmp_path).open() as box:
            work = tmp_path / "scratch" / box.name / "work"
            task = repository(work)
            assert SECRET.encode() in everything(work)
            tree = git(work, "rev-parse", "HEAD^{tree}")
            git(work, "checkout", "--quiet", "future")
            (work / "hooked").unlink()
            assert await forget_history(box, "work", task) == task
            assert git(work, "rev-parse", "HEAD^{tree}") == tree
            assert git(work, "rev-list", "--all") == task
            assert (work / "a").read_text() == "broken\n"
            assert (work / "built").read_text() == "built before"
            left = everything(work)
            assert SECRET.encode() not in left and b"the past" in left
            assert git(work, "remote") == git(work, "reflog") == git(work, "stash", "list") == ""
            assert not list((work / ".git").rglob("logs/*")) and not (work / "hooked").exists()
            assert not (work / "nested/.git").exists()
            assert git(work, "status", "--porcelain", "-uno") == ""
            git(work, "fsck")
            assert await forget_history(box, "work") == task, "once more"
            assert commit(work, "the agent's", a="mended\n")
            for wrong in ("no-such-commit", "v2"):
                with pytest.raises(BoxError, match="is there still"):
                    await forget_history(box, "work", wrong)
            with pytest.raises(ValueError, match="no commit"):
                await forget_history(box, "work", "--all")
            with pytest.raises(BoxError, match="is there still"):
                await forget_history(box, "nowhere")

    asyncio.run(both())


def test_hidden_tests_see_the_patch_and_none_of_the_agents_processes(tmp_path: Path) -> None:
    boxes = directories(tmp_path)

    async def prepared(box: Box) -> tuple[Path, str]:
        work = tmp_path / "scratch" / box.name / "work"
        repository(work)
        return work, await forget_history(box, "work")

    async def both() -> None:
        async with boxes.open() as box:
            work, task = await prepared(box)
            (work / "a").write_text("mended\n")
            (work / "new").write_bytes(b"\x00binary\xff")
            (work / "test.sh").write_text("exit 0 # the agent's own judge\n")
            git(work, "commit", "--quiet", "--all", "--message", "of the agent")
            (work / "a").write_text("mended twice\n")
            git(
                work, "reset", "--quiet", "--soft", git(work, "rev-list", "--max-parents=0", "HEAD")
            )
            patch = await patch_of(box, task, "work")
        judge = {"test.sh": 'grep -q "mended twice" a && test -e new\n'}
        for only, well in (((), True), (("a",), False), (("a", "new"), True)):
            async with boxes.open() as fresh:
                await prepared(fresh)
                ran = await hidden_tests(
                    fresh, patch, judge, ["sh", "test.sh"], path="work", only=only
                )
                assert ran.well == well, (only, ran)
        async with boxes.open() as fresh:
            await prepared(fresh)
            for garbage in (b"no patch", b"--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n"):
                assert not (await hidden_tests(fresh, garbage, {}, ["true"], path="work")).well
            assert (await hidden_tests(fresh, b"", {}, ["true"], path="work")).well

    asyncio.run(both())
