"""Text to token ids and back, from a model directory. Invariant: the ids a prompt gets are what the
model's own tokenizer gives, but for those that end a text.

Only the `tokenizers` library is needed, so the coordinator and the reward actors never import
torch. A chat template is Jinja that `transformers` renders, in a process of its own
(`template_process.py`): it is imported for conversations alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Fast

from asyncrl.config.paths import is_file
from asyncrl.escape import escaped
from asyncrl.files import JSON_BYTES, read_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.foreign_process import CallFailed
from asyncrl.tasks.images.image_decoder import decoded_image, image_bytes
from asyncrl.tasks.images.image_source import ImageSource
from asyncrl.tasks.images.pixels import written_png
from asyncrl.tasks.images.vision_model import VisionModel
from asyncrl.tasks.model_json import read_model_json
from asyncrl.tasks.prompt import ChatPrompt, Prompt
from asyncrl.tasks.template_process import TemplateProcess

_USUAL = 8
"""Characters a token, up to which a text is tokenized without counting first."""
_PROBE = "asyncrl1question2"
"""A question that a chat template must render unchanged."""
_PIECE = 1 << 14
"""Characters that are tokenized at a time to count tokens."""


class Tokenizer:
    """The tokenizer of a Hugging Face model directory.

    >>> import tempfile
    >>> from asyncrl.bundled.bundled_model import write_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tokenizer(Path(folder))
    ...     tokenizer = Tokenizer(folder)
    >>> tokenizer.encode("abc"), tokenizer.decode([97, 98, 99])
    ([97, 98, 99], 'abc')
    """

    def __init__(self, directory: str | Path, *, chat: bool = False) -> None:
        """Raises TaskError if the directory has no `tokenizer.json`, or `chat` is asked of a
        model without a chat template."""
        path = Path(directory) / "tokenizer.json"
        if not is_file(path):
            raise TaskError(
                f"{directory} has no tokenizer.json; model.path must be a Hugging Face model "
                "directory with a fast tokenizer"
            )
        try:
            # not by its name, which the library wants in UTF-8
            self._fast: Any = Fast.from_buffer(read_regular(path, JSON_BYTES))
        except OSError as error:
            raise TaskError(f"{path} cannot be read: {error.strerror}") from error
        except BaseException as error:
            raise TaskError(f"{path} cannot be read: {_said(error)}") from error
        # Training scripts save these with the file; a prompt is never cut or padded here.
        self._fast.no_truncation()
        self._fast.no_padding()
        self._directory, self._own_chat = directory, chat
        self._templates: tuple[TemplateProcess, TemplateProcess] | None = None
        self.template = ""
        """The source of the chat template; empty if nothing was rendered, as with `chat` it is."""
        if chat:
            self._refuse_deaf_template(directory)
        self.stop_ids: tuple[int, ...] = _stop_ids(Path(directory), self._fast)
        self.end_id = _end_id(Path(directory), self._fast)
        """The id that ends a response: the tokenizer's own, or the first of `stop_ids`; None if
        the model's files name none."""
        if self.end_id is None and self.stop_ids:
            self.end_id = self.stop_ids[0]
        self.embedded = _embedded(Path(directory))
        """Rows of the model's embedding: every id that it can read is smaller. 0 if its files do
        not say."""
        self.sampled = max(self.vocabulary, self.embedded)
        """Number of different ids that the model can sample: its embedding may be larger than its
        vocabulary."""

    @property
    def vocabulary(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt. A text gets the special tokens that the model starts one with, or
        its chat template with `chat`, ready for the answer. A conversation is in the chat template
        if the model has one, else it is a text; ids are the prompt."""
        if isinstance(prompt, list):
            return prompt
        if isinstance(prompt, ChatPrompt):
            if prompt.images:
                raise TaskError("the prompt has an image, which is read in a run alone")
            if self.has_template:
                return self.ids(self.render(prompt.messages, prompt.tools))
            return self.ids(prompt.text, start=True)
        if not self._own_chat:
            return self.ids(prompt, start=True)
        return self.ids(self.render([{"role": "user", "content": prompt}]))

    def encode_shown(
        self, prompt: ChatPrompt, bytes_of: Callable[[ImageSource], bytes] = image_bytes
    ) -> tuple[list[int], list[bytes]]:
        """The ids of a conversation with images, each with as many placeholders as the model's own
        processor gives it, and the images, as they are kept. Raises TaskError."""
        model = self.vision
        if not self.has_template:
            raise TaskError("the prompt has an image, and the model has no chat template")
        shown = [self.shown(image, bytes_of) for image in prompt.images]
        ids = self.ids(self.render(prompt.messages, prompt.tools))
        return model.expanded(ids, [parts for _, parts in shown]), [png for png, _ in shown]

    def shown(
        self, image: ImageSource, bytes_of: Callable[[ImageSource], bytes] = image_bytes
    ) -> tuple[bytes, int]:
        """An image as it is kept, and the number of ids that stand for it. Raises TaskError."""
        try:
            pixels = decoded_image(bytes_of(image), image.path or image.url)
        except LookupError as error:
            raise TaskError(str(error)) from error
        return written_png(pixels), self.vision.tokens(pixels)

    @cached_property
    def vision(self) -> VisionModel:
        """The part of the model that reads images. Raises TaskError for a model of text."""
        return VisionModel(Path(self._directory))

    @cached_property
    def has_template(self) -> bool:
        """True if the model's files have a chat template."""
        return self._templates is not None or _has_template(Path(self._directory))

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """A conversation in the model's chat template, ready for the answer. Raises TaskError if
        there is none, or the template cannot render it."""
        return self._rendered(0, messages, tools)

    def written(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """A conversation in the model's chat template, as it stands: no answer begins behind it.
        Raises TaskError as `render`."""
        return self._rendered(1, messages, tools)

    def _rendered(
        self,
        written: int,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        if self._templates is None:
            template, self.template = _chat_template(self._directory)
            self._templates = (
                TemplateProcess(partial(template, ready=True)),
                TemplateProcess(partial(template, ready=False)),
            )
        try:
            return self._templates[written].render(messages, tools)
        except CallFailed as error:
            raise TaskError(
                f"the model's chat template cannot render this: {escaped(str(error), 300)}"
            ) from error

    def _refuse_deaf_template(self, directory: str | Path) -> None:
        """Raise TaskError if the chat template leaves the question out, or cannot render it."""
        if _PROBE not in self.render([{"role": "user", "content": _PROBE}]):
            raise TaskError(
                f"the chat template of {directory} leaves the question out of the prompt (some "
                "expect a list of parts as content): correct it, or set task.chat = false and "
                "task.template"
            )

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        """The ids of a piece of text, in which names of special tokens become these tokens. With
        `start` the ids begin with those that the model starts a text with. Some tokenizers also end
        a text: a model that is to continue it gets no such token."""
        encoded = self._encoded(text, start=start)
        added = encoded.special_tokens_mask
        end = len(added)
        while end and added[end - 1]:
            end -= 1
        return list(encoded.ids[:end] if end else encoded.ids)

    def _encoded(self, text: str, *, start: bool = False) -> Any:
        """A text as the library encodes it. Raises TaskError where the library fails at it."""
        try:
            return self._fast.encode(text, add_special_tokens=start)
        except BaseException as error:
            raise _failed(error, "this text") from error

    @cached_property
    def ending(self) -> str:
        """Names of the tokens with which the tokenizer ends a text, which no prompt has; empty if
        there are none."""
        encoded = self._encoded(_PROBE, start=True)
        return self.decode(encoded.ids[len(self.ids(_PROBE, start=True)) :], special=True)

    @property
    def ids_by_token(self) -> dict[str, int]:
        """The whole vocabulary, added tokens included."""
        return dict(self._fast.get_vocab(with_added_tokens=True))

    @cached_property
    def digest(self) -> str:
        """A digest of the vocabulary, which tells whether ids of another mean the same here."""
        ids = sorted(self.ids_by_token.items())
        return hashlib.blake2b(msgspec.json.encode(ids), digest_size=16).hexdigest()

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The special tokens, by their names."""
        added = self._fast.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    @cached_property
    def longest(self) -> int:
        """Number of characters of the longest token, at least 1."""
        return max(map(len, self._fast.get_vocab(with_added_tokens=True)), default=1)

    def ids_within(self, text: str, most: int, *, start: bool = False) -> list[int] | None:
        """The ids of a text, as by `ids`; None if they are more than `most`. A text that
        cannot fit is not tokenized to its end: time and memory are those of about `most` tokens."""
        if len(text) > most * self.longest:
            return None
        if len(text) > most * _USUAL:
            tokens = 0
            for cuts, at in enumerate(range(0, len(text), _PIECE), 1):
                piece = text[at : at + _PIECE]
                tokens += len(self._encoded(piece))
                # a cut splits one token, into at most as many as it has characters
                if tokens - cuts * self.longest > most:
                    return None
        ids = self.ids(text, start=start)
        return ids if len(ids) <= most else None

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; with the names of special tokens if `special`."""
        try:
            return str(self._fast.decode(list(ids), skip_special_tokens=not special))
        except BaseException as error:
            raise _failed(error, "these ids") from error

    def ends(self, token: int) -> bool:
        """True if this id ends a response and has no text of its own."""
        return token in self.stop_ids and not self.decode([token])

    def decode_response(self, ids: Sequence[int]) -> str:
        """The text of a response with the names of its special tokens, but for the one that ended
        it."""
        return self.decode(ids[:-1] if ids and self.ends(ids[-1]) else ids, special=True)


def _chat_template(directory: str | Path) -> tuple[Callable[..., str], str]:
    """The chat template of a model directory, which renders messages and tools, and where it is
    `ready` the beginning of an answer behind them; and its source. Raises TaskError."""
    from transformers import AutoTokenizer
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    # it may raise anything for files that it cannot parse, and for code that it must not run
    except Exception as error:
        raise TaskError(
            f"the tokenizer in {directory} cannot be used with a chat template: "
            f"{escaped(str(error).strip().partition(chr(10))[0], 300)}"
        ) from error
    if not tokenizer.chat_template:
        raise TaskError(
            f"the model in {directory} has no chat template: set task.chat = false and "
            "task.template"
        )

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, ready: bool
    ) -> str:
        if any(message.get("content", "") is None for message in messages):
            # the method below drops what is None, and some templates tell calls by it
            texts, _ = render_jinja_template(
                conversations=[list(messages)],
                tools=list(tools) or None,
                chat_template=tokenizer.get_chat_template(None, list(tools) or None),
                add_generation_prompt=ready,
                **tokenizer.special_tokens_map,
            )
            return str(texts[0])
        text = tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=ready
        )
        return str(text)

    source = tokenizer.chat_template
    return render, source if isinstance(source, str) else "\n".join(map(str, source.values()))


def _has_template(directory: Path) -> bool:
    """True if there is a chat template among a model's files."""
    if any(is_file(directory / name) for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return bool(read_model_json(directory / "tokenizer_config.json", _ModelFile).chat_template)


def _embedded(directory: Path) -> int:
    """Rows of the model's embedding, 0 if its configuration does not say."""
    config = read_model_json(directory / "config.json", _ModelFile)
    return config.vocab_size or (config.text_config or _ModelFile()).vocab_size or 0


def _stop_ids(directory: Path, fast: Any) -> tuple[int, ...]:
    """All ids that the model's files call an end of sequence, sorted."""
    stop_ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ids = read_model_json(directory / name, _ModelFile).eos_token_id
        stop_ids.update([ids] if isinstance(ids, int) else ids or [])
    if (number := _end_id(directory, fast)) is not None:
        stop_ids.add(number)
    return tuple(sorted(stop_ids))


def _end_id(directory: Path, fast: Any) -> int | None:
    """The id that the tokenizer's own file calls its end of sequence."""
    token = read_model_json(directory / "tokenizer_config.json", _ModelFile).eos_token
    text = token.content if isinstance(token, _Token) else token
    number: int | None = None if text is None else fast.token_to_id(text)
    return number


def _failed(error: BaseException, at: str) -> TaskError:
    """An error of the library at a text."""
    return TaskError(f"the model's tokenizer fails at {at}: {_said(error)}")


def _said(error: BaseException) -> str:
    """An error of the library in words. It panics at a file that contradicts itself, and where an
    expression is too expensive for a text, and a panic is no Exception; other errors that are none
    are raised."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return escaped(str(error).strip().partition("\n")[0], 300) or type(error).__name__


class _Token(msgspec.Struct):
    content: str


class _ModelFile(msgspec.Struct):
    """Parts of a model's JSON files that are read; each file has some of them."""

    eos_token_id: int | list[int] | None = None
    eos_token: str | _Token | None = None
    vocab_size: int | None = None
    text_config: _ModelFile | None = None
    chat_template: object = None
