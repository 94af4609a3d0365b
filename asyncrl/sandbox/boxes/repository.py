"""Git repositories in a sandbox: without their history, and judged by hidden tests.

Agents have found the fix of a task in the future of its repository: in a packed object, a tag, a
reflog. `forget_history` leaves the task's commit alone. And tests that an agent can read or change
are no judges: `hidden_tests` runs them in a fresh sandbox, into which only the agent's patch goes.

Git runs in the sandbox, never here: a repository's own configuration can start programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from asyncrl.sandbox.boxes.box import FILE_BYTES, Box
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.programs.program import Ran

GIT_S = 600.0
"""Seconds that git may take for one of its steps."""
_COMMIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/~^-]{0,199}")
_GIT = 'g="git -c safe.directory=* -c core.hooksPath=/dev/null -c core.fsmonitor=false"'
_FORGET = f"""\
set -eu
cd "$1"
{_GIT}
export GIT_CONFIG_NOSYSTEM=1
if ! [ -d .git ] || [ -L .git ]; then echo "its .git is no folder" >&2; exit 1; fi
sha=$($g rev-parse --verify --quiet "$2^{{commit}}") || {{ echo "no commit $2" >&2; exit 1; }}
if [ "$sha" != "$($g rev-parse HEAD)" ]; then $g checkout --quiet --force --detach "$sha"; fi
rm -rf .git.new
$g init --quiet --bare --template= --object-format="$($g rev-parse --show-object-format)" .git.new
n="$g --git-dir=.git.new"
$g rev-list --objects --no-walk "$sha" | cut -d' ' -f1 | $g pack-objects --quiet --stdout |
    $n index-pack --stdin >/dev/null
echo "$sha" >.git.new/shallow
$n config core.bare false
$n config core.logAllRefUpdates false
$n update-ref refs/heads/task "$sha"
$n symbolic-ref HEAD refs/heads/task
if [ -f .git/info/exclude ]; then mkdir -p .git.new/info; cp .git/info/exclude .git.new/info/; fi
$n fsck --connectivity-only --no-dangling >/dev/null 2>&1 ||
    {{ echo "a part of it is lost" >&2; exit 1; }}
rm -rf .git
mv .git.new .git
find . -mindepth 2 -name .git -prune -exec rm -rf {{}} +
$g reset --quiet
echo "$sha"
"""
_PATCH = f"""\
set -eu
cd "$1"
{_GIT}
$g add --all --intent-to-add .
exec $g diff --binary --no-ext-diff --no-textconv --no-color "$2" --
"""
_APPLY = f"""\
cd "$1" || exit 1
shift
{_GIT}
exec $g apply --whitespace=nowarn "$@" -
"""


async def forget_history(box: Box, path: str = ".", commit: str = "HEAD") -> str:
    """Leave a repository in a sandbox with one commit, whose files are checked out: no history, no
    other branch or tag, no remote, no reflog, no hook, no object that the commit does not have.
    Files that git does not track stay; a `.git` further below is removed. Returns the commit's
    hash, which is what it was. Raises BoxError."""
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"{commit[:80]!r} names no commit")
    ran = await box.run(["/bin/sh", "-c", _FORGET, "sh", path, commit], seconds=GIT_S)
    if not ran.well:
        raise BoxError(f"the history of a repository in {box.name} is there still: {_last(ran)}")
    return ran.stdout.decode(errors="replace").strip().rpartition("\n")[2]


async def patch_of(box: Box, commit: str, path: str = ".") -> bytes:
    """The patch from the task's commit, as `forget_history` returned it, to a repository's files,
    new ones with them, whatever the agent has committed since. An agent may have changed git
    itself in its sandbox, so the patch is whatever the agent wants; it is only applied in a fresh
    one. Raises BoxError if there is none."""
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"{commit[:80]!r} names no commit")
    ran = await box.run(
        ["/bin/sh", "-c", _PATCH, "sh", path, commit], seconds=GIT_S, output_bytes=FILE_BYTES
    )
    if not ran.well:
        raise BoxError(f"a repository in {box.name} gives no patch: {_last(ran)}")
    return ran.stdout


async def hidden_tests(
    fresh: Box,
    patch: bytes,
    tests: Mapping[str, bytes | str],
    argv: Sequence[str],
    *,
    path: str = ".",
    only: Sequence[str] = (),
    seconds: float = 600.0,
) -> Ran:
    """Run a command that judges a patch, in a `fresh` sandbox with the task's repository at `path`,
    in which no process of the agent was. The patch is applied, or of it what changes the patterns
    `only`, as "src/*"; then the files of `tests` are written, over the agent's own. Returns the end
    of the command, or that of git where the patch does not apply. Raises BoxError."""
    if patch.strip():
        chosen = [f"--include={pattern}" for pattern in only]
        applied = await fresh.run(
            ["/bin/sh", "-c", _APPLY, "sh", path, *chosen], stdin=patch, seconds=GIT_S
        )
        if not applied.well:
            return applied
    for name, content in tests.items():
        await fresh.put(f"{path}/{name}", content)
    return await fresh.run(argv, cwd=path, seconds=seconds)


def _last(ran: Ran) -> str:
    if ran.timed_out or ran.truncated:
        return "it took too long" if ran.timed_out else "it is too large"
    text = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return repr(text[:200]) if text else f"git ended with {ran.code}"
