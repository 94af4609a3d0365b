"""Completion in shells: verbs, options and files, and after `--set` the settings and their values.
`eval "$(register-python-argcomplete asyncrl)"` turns it on."""

from __future__ import annotations

import argparse

import argcomplete
from argcomplete.completers import FilesCompleter

from asyncrl.config.fields import FIELDS, SECTIONS


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and end the process."""
    for verb in _verbs(parser):
        for action in verb._actions:  # argparse has no public way to list them
            if "--set" in action.option_strings:
                action.completer = settings  # type: ignore[attr-defined]
            elif action.dest == "config":
                action.completer = FilesCompleter(("toml",))  # type: ignore[attr-defined]
            elif action.dest == "section":
                action.completer = sections  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def settings(prefix: str, **_: object) -> list[str]:
    """The settings with this prefix, and once one is written its possible values.

    >>> settings("staleness.on_st")
    ['staleness.on_stale=']
    >>> settings("cluster.kind=")
    ['cluster.kind=local', 'cluster.kind=agents', 'cluster.kind=ray']
    """
    key, written, begun = prefix.partition("=")
    if not written:
        return [f"{name}=" for name in FIELDS if name.startswith(prefix)]
    if key not in FIELDS:
        return []
    field = FIELDS[key]
    words = ("true", "false") if field.kind is bool else field.choices or field.listed
    return [f"{key}={word}" for word in words if word.startswith(begun)]


def sections(prefix: str, **_: object) -> list[str]:
    """The sections with this prefix.

    >>> sections("mod")
    ['model', 'model.lora']
    """
    return [name for name in SECTIONS if name.startswith(prefix)]


def _verbs(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of the verbs."""
    return [
        verb
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb in action.choices.values()
    ]
