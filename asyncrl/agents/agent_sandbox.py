"""Programs of an episode in the sandbox: how each reaches the run's model, and which files a
program of `agent.run` sees. Invariant: a program has the episode's key for calls, and never the one
for rewards.

    program (no network) ── 127.0.0.1:PORT ── forwarder ── the episode's socket ── gateway

There is such a socket for each attempt, and it answers for that session alone
(`asyncrl.actors.episode_sockets`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.agents.agent_episode import MODEL, AgentEpisode, BlockingEpisode, EpisodeFacts
from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import exists
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import trial
from asyncrl.sandbox.programs.loopback import by_loopback
from asyncrl.sandbox.programs.program import Program, ProgramError
from asyncrl.sandbox.programs.runner import run

PORT = 8089
"""The port of the sandbox's own loopback at which a program finds the gateway."""
SECONDS = 7 * 86_400.0
"""Time limit of a program of `agent.run`; its attempt's clock ends it earlier."""
_SEEN = 'test -x "$0" || exit 1; for file; do test -r "$file" || exit 2; done'


class NoSocketError(Exception):
    """The run's gateway has no sockets for sandboxes; the text says what to set."""


def base_url(session: str) -> str:
    """The session's base URL, inside."""
    return f"http://127.0.0.1:{PORT}/sessions/{session}/v1"


def client_variables(url: str, key: str) -> dict[str, str]:
    """The environment variables that OpenAI's and Anthropic's clients read, for the base URL and
    the key for calls of a session. The OpenAI Agents SDK would send its traces to OpenAI, prompts
    and all, with this key.

    >>> client_variables("http://127.0.0.1:80/sessions/a/v1", "k")["ANTHROPIC_BASE_URL"]
    'http://127.0.0.1:80/sessions/a'
    """
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": MODEL,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": MODEL,
    }


def with_model(program: Program, episode: AgentEpisode | BlockingEpisode | EpisodeFacts) -> Program:
    """Return the program with access to the model from inside the sandbox: an OpenAI or
    Anthropic client finds the URL and the key in its environment. Raises NoSocketError.

    ran = await run_in_asyncio(with_model(program, episode), Bubblewrap())
    """
    if not episode.socket:
        raise NoSocketError(
            "the run has no gateway for programs in a sandbox: set agent.sandbox to bwrap"
        )
    variables = client_variables(base_url(episode.session), episode.api_key)
    return by_loopback(
        msgspec.structs.replace(
            program, gateway=episode.socket, environment={**program.environment, **variables}
        ),
        PORT,
    )


def program_of_command(argv: Sequence[str], paths: Sequence[str]) -> Program:
    """Make a program of a command line. It sees its executable, the folders of a Python, the files
    among its arguments, and `paths`."""
    executable = Path(shutil.which(argv[0]) or argv[0]).absolute()
    words, files = [str(executable)], []
    for word in argv[1:]:
        if _is_file(word):
            files.append(str(Path(word).absolute()))
            words.append(files[-1])
        else:
            words.append(word)
    return Program(
        argv=tuple(words),
        paths=(
            *(str(executable), *_of_python(executable)),
            *(*files, *(str(Path(path).absolute()) for path in paths)),
        ),
        proc=True,
        seconds=SECONDS,
    )


def _of_python(executable: Path) -> list[str]:
    """The folders of a Python: its environment, and the one that this was made from."""
    real = executable.resolve()
    folders = [path.parent.parent for path in (executable, real)]
    return [
        str(folder)
        for folder in folders
        if (folder / "pyvenv.cfg").is_file() or (folder / "lib" / real.name).is_dir()
    ]


def _is_file(word: str) -> bool:
    """True if a word of a command names a file; it may as well be a program of any length."""
    return os.path.isfile(word)  # noqa: PTH113  # `Path.is_file` raises for a long word


def refuse_without_sandbox(argv: Sequence[str], paths: Sequence[str]) -> None:
    """Start a program in the sandbox, and one that looks there for the files of the command `argv`
    (empty: no command). Raises ConfigError if either fails."""
    for path in paths:
        if not exists(Path(path)):
            raise ConfigError(f"agent.paths has {path!r}, which does not exist; correct it.")
    sandbox = Bubblewrap()
    if missing := sandbox.missing():
        raise ConfigError(
            f"agent.sandbox is bwrap, and this machine does not have it ({missing}); allow user "
            "namespaces, or set it to none, which confines nothing."
        )
    if problem := trial("python", sandbox):
        raise ConfigError(
            f"agent.sandbox is bwrap, in which a Python forwards calls to the gateway, and "
            f"{problem}; install python3 for all users, or set it to none."
        )
    if not argv:
        return
    program = program_of_command(argv, paths)
    files = [str(Path(word).absolute()) for word in argv[1:] if _is_file(word)]
    looking = msgspec.structs.replace(
        program, argv=("sh", "-c", _SEEN, program.argv[0], *files), seconds=60.0
    )
    try:
        ran = run(looking, sandbox)
    except ProgramError as error:
        raise ConfigError(f"agent.run cannot be started in the sandbox: {error}.") from None
    if not ran.well:
        what = "start" if ran.code == 1 else "read all files of"
        raise ConfigError(
            f"agent.sandbox is bwrap, in which {argv[0]!r} of agent.run cannot {what} its command: "
            "name what it needs in agent.paths, and let all users read that."
        )
