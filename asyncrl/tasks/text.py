"""Text to token ids and back, from a model directory. Invariant: the ids a prompt gets are what the model's own tokenizer gives.

Only the `tokenizers` library is needed, so the coordinator and the reward actors never import torch. A chat template is Jinja that
`transformers` renders: it is imported for `task.chat` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Fast

from asyncrl.tasks import TaskError


class Tokenizer:
    """The tokenizer of a Hugging Face model directory."""

    def __init__(self, directory: str | Path, *, chat: bool = False) -> None:
        """Raises TaskError where the directory has no `tokenizer.json`, or `chat` is asked of a model without a chat template."""
        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise TaskError(f"{directory} has no tokenizer.json; model.path must be a Hugging Face model directory with a fast tokenizer")
        try:
            self._fast: Any = Fast.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise TaskError(f"{path} cannot be read: {error}") from error
        self._chat = _chat_template(directory) if chat else None
        self.stop_ids: tuple[int, ...] = _stop_ids(Path(directory), self._fast)

    @property
    def vocabulary(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def encode(self, prompt: str) -> list[int]:
        """The ids of a prompt: with the special tokens the model starts a text with, or in its chat template, ready for the answer."""
        if self._chat is None:
            return list(self._fast.encode(prompt).ids)
        text = self._chat.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""
        return str(self._fast.decode(list(ids), skip_special_tokens=True))


def _chat_template(directory: str | Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    if not tokenizer.chat_template:
        raise TaskError(f"task.chat = true, but the model in {directory} has no chat template; set task.template instead")
    return tokenizer


def _stop_ids(directory: Path, fast: Any) -> tuple[int, ...]:
    """Every id one of the model's files calls its end of sequence; sorted."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ids = _json(directory / name).get("eos_token_id")
        found.update([ids] if isinstance(ids, int) else ids or [])
    token = _json(directory / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str) and (number := fast.token_to_id(text)) is not None:
        found.add(number)
    return tuple(sorted(found))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} is not a JSON object: {error}") from error
