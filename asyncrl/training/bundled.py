"""The bundled small model. Invariant: it is built in code, and what is written is an ordinary Hugging Face model directory.

A Qwen3 of four layers over single bytes: the id of a byte is its value. It starts from random weights; `warmup.py` teaches it the task.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import Qwen3Config, Qwen3ForCausalLM

END, PADDING = "<|end|>", "<|padding|>"
END_ID, PADDING_ID = 256, 257
VOCABULARY = 258


def tokenizer() -> Tokenizer:
    """Bytes to ids and back; `END` and `PADDING` are its special tokens."""
    fast = Tokenizer(BPE(vocab={character: byte for byte, character in enumerate(_characters())}, merges=[]))
    fast.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = ByteLevelDecoder()
    fast.add_special_tokens([AddedToken(END, special=True), AddedToken(PADDING, special=True)])
    return fast


def write_tokenizer(directory: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, as `transformers` reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))
    form = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(form, indent=2) + "\n")


def model_config() -> Qwen3Config:
    """The model's shape: 0.9 million parameters."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
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


def write_model(model: Qwen3ForCausalLM, directory: Path) -> None:
    """The model and its tokenizer."""
    model.save_pretrained(str(directory))
    write_tokenizer(directory)


def _characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table): itself where it is printable in
    Latin-1, else the next one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
