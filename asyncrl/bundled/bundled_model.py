"""The bundled small model. Invariant: it is built in code, and written as an ordinary Hugging
Face model directory.

A small Qwen3 over single bytes: the id of a byte is its value. The texts with which every prompt of
the task starts and ends (its frame, often most of it) are one token each, as are the frames of chat
templates.
It starts from random weights; `warmup.py` teaches it the task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from asyncrl.tasks import Task
from asyncrl.tasks.mixed import in_turn
from asyncrl.tasks.prompt import text_of

if TYPE_CHECKING:
    from transformers import Qwen3Config, Qwen3ForCausalLM

END, PADDING = "<|end|>", "<|padding|>"
END_ID, PADDING_ID = 256, 257
VOCABULARY = 260
ACCURACY = "warmup.json"
"""The file in a model's directory with the result of its warm-up."""
FRAMED = 64
"""Prompts that a task's frame is computed from."""

CHAT_TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
{%- for message in messages %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}
{%- if message.role == 'assistant' %}{{ '<|end|>' }}
{%- elif not (message.content or '').endswith('\n') %}{{ '\n' }}{% endif %}
{%- endfor %}"""
"""A line for each message, and `END` behind a reply: so a chat of one message is the default
`task.template`, applied already or not, and a conversation goes on from the tokens that were
sampled."""


def frame(prompts: Sequence[str]) -> list[str]:
    """Texts with which all these prompts start and end, if they are longer than a character: at
    most two.

    >>> frame(["Spell cat: ", "Spell dog: "])
    ['Spell ', ': ']
    """
    start = common_start(prompts)
    end = common_start([prompt[len(start) :][::-1] for prompt in prompts])[::-1]
    return [text for text in (start, end) if len(text) > 1]


def common_start(texts: Sequence[str]) -> str:
    """The longest common start of these texts."""
    first, last = min(texts), max(texts)  # in the order of characters, so all others lie between
    return first[
        : next(
            (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
            len(first),
        )
    ]


def task_frame(task: Task) -> list[str]:
    """The frame of a task's prompts, computed from the first ones."""
    return frame(first_prompts(task))


def first_prompts(task: Task) -> list[str]:
    """The first prompts of a task, as texts."""
    first = islice(in_turn(task), min(FRAMED, task.size("train")))
    return [text_of(task.prompt("train", item)) for item in first]


def tokenizer(frame: Sequence[str] = ()) -> Tokenizer:
    """Bytes to ids and back, with one id for each text of `frame`; `END` and `PADDING` are its
    special tokens."""
    fast = Tokenizer(
        BPE(vocab={character: byte for byte, character in enumerate(_characters())}, merges=[])
    )
    fast.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = ByteLevelDecoder()
    fast.add_special_tokens([AddedToken(END, special=True), AddedToken(PADDING, special=True)])
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in frame])
    return fast


def write_tokenizer(
    directory: Path, frame: Sequence[str] = (), template: str = CHAT_TEMPLATE
) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, as `transformers`
    reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer(frame).save(str(directory / "tokenizer.json"))
    form = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(form, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(template)


def write_accuracy(directory: Path, accuracy: float, steps: int) -> None:
    """Write the accuracy of a warm-up of at most `steps` steps beside its model."""
    result = {"accuracy": accuracy, "steps": steps}
    (directory / ACCURACY).write_text(json.dumps(result) + "\n")


def warmed_to(model: Path) -> float | None:
    """The accuracy that a model's warm-up reached; None for a model without one."""
    try:
        result = json.loads((model / ACCURACY).read_text())
    except FileNotFoundError:
        return None
    return float(result["accuracy"]) if result["steps"] else None


def model_config() -> Qwen3Config:
    """The model's shape: 0.5 million parameters."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        eos_token_id=END_ID,
        pad_token_id=PADDING_ID,
        bos_token_id=None,
    )


def new_model(seed: int) -> Qwen3ForCausalLM:
    """Random weights, a function of the seed; the global generator is left as it was."""
    import torch
    from transformers import Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(model_config())


def _characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table):
    itself if it is printable in Latin-1, else the next one from U+0100 on."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    ]
