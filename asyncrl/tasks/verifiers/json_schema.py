"""The response is JSON that meets the line's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from asyncrl.tasks.final_answers import spoken
from asyncrl.tasks.program_cases import code_of
from asyncrl.tasks.verifiers import BuiltIn, shown


class JsonSchema(BuiltIn):
    """1 if the response, or its last fenced block, is JSON that meets the line's `schema`, which is
    an object, or its text. The schema refers to parts of itself alone: nothing is fetched.

    >>> JsonSchema()("three", {"schema": {"type": "integer"}})
    0.0
    """

    kind: ClassVar[str] = "json_schema"
    compares: ClassVar[bool] = False
    package: ClassVar[str] = "jsonschema"
    extra: ClassVar[str] = "schema"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        try:
            found = msgspec.json.decode(code_of(spoken(answer)).encode(errors="replace"))
            return float(_validator(_schema(line)).is_valid(found))
        except (msgspec.DecodeError, RecursionError, ArithmeticError):
            return 0.0  # it is nested without end, or has a number without a double

    def check(self, line: Mapping[str, Any]) -> None:
        self.refuse_missing()
        import jsonschema

        if "schema" not in line:
            raise LookupError("its verifier is `json_schema`, which reads the key `schema`")
        try:
            schema = _schema(line)
            foreign = next((ref for ref in _references(schema) if not ref.startswith("#")), None)
            if foreign is None:
                jsonschema.validators.validator_for(schema).check_schema(schema)
        except jsonschema.SchemaError as error:
            raise LookupError(
                f"its verifier is `json_schema`, and its schema is none: {error.message[:200]}"
            ) from None
        except (msgspec.DecodeError, RecursionError, TypeError) as error:
            raise LookupError(
                f"its verifier is `json_schema`, and its schema cannot be read: {error}"
            ) from None
        if foreign is not None:
            raise LookupError(
                f"its verifier is `json_schema`, and its schema refers to {shown(foreign)}, which "
                "would be fetched: write that part into its $defs, and refer to it by #/$defs/…"
            )


def _schema(line: Mapping[str, Any]) -> Any:
    schema = line["schema"]
    return msgspec.json.decode(schema) if isinstance(schema, str) else schema


def _validator(schema: Any) -> Any:
    import jsonschema
    import referencing

    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, registry=referencing.Registry())  # which retrieves nothing


def _references(schema: Any) -> Iterator[str]:
    """All references in a schema, and in its data that look like one."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
