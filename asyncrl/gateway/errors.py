"""What the gateway answers where it does not do what was asked. Invariant: it is one sentence in
OpenAI's form, and never a traceback."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


class GatewayError(Exception):
    """`status` is HTTP's; `code` names the kind for programs; `param` is the field of the request
    that it is about; `retry_s` seconds from now it is worth another try."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param, self.retry_s = (
            status,
            code,
            message,
            param,
            retry_s,
        )

    def body(self) -> bytes:
        """The JSON of it."""
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

    def response(self) -> Response:
        headers = {} if self.retry_s is None else {"retry-after": str(self.retry_s)}
        return Response(self.body(), self.status, headers, "application/json")


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> GatewayError:
    """A request that can never be done."""
    return GatewayError(400, code, message, param=param)
