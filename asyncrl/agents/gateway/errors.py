"""Errors of the gateway. Invariant: an agent gets one sentence in OpenAI's form, and never a
traceback."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

_CHARACTERS = 1000


class GatewayError(Exception):
    """A request was refused or failed. `status` is the HTTP status; `code` names the kind for
    programs; `param` is the field of the request at fault; a retry makes sense after `retry_s`
    seconds."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        # it may quote what was sent
        message = message if len(message) <= _CHARACTERS else message[:_CHARACTERS] + "…"
        super().__init__(message)
        self.status, self.code, self.message, self.param, self.retry_s = (
            status,
            code,
            message,
            param if param is None else param[:_CHARACTERS],
            retry_s,
        )

    def body(self) -> bytes:
        """The JSON of the answer."""
        kind = (
            "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        )
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": kind,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self, body: bytes | None = None) -> Response:
        """The answer, with this body or OpenAI's."""
        headers = {} if self.retry_s is None else {"retry-after": str(self.retry_s)}
        return Response(body or self.body(), self.status, headers, "application/json")


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> GatewayError:
    """The error of a request that can never succeed."""
    return GatewayError(400, code, message, param=param)
