"""Errors of SGLang servers, each one sentence."""

from __future__ import annotations


class SglangError(Exception):
    """A server failed: one sentence with its address."""


class ServerGone(SglangError):
    """The connection was refused or broke, or the server was silent for too long: what it holds is
    lost."""


class RequestRefused(SglangError):
    """The server said no, or that it cannot; `status` is the HTTP status it gave."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Misread(SglangError):
    """The server sent what cannot be read, or what contradicts itself."""
