"""A small model that reads images, to try them on a laptop: `python -m asyncrl.bundled.small_vision
DIRECTORY LETTERS` writes one that answers by one of these letters, at random. Invariant: it is
built in code, and written as an ordinary Hugging Face model directory.

A Qwen2.5-VL of random weights over single bytes, as the bundled model is. An image of 56 × 56 is
four tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.bundled import bundled_model
from asyncrl.bundled.bundled_model import END, END_ID, PADDING_ID

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEEN = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""The tokens around and in place of an image."""
START_ID, IMAGE_ID, STOP_ID = range(258, 261)
VOCABULARY = 264
CHAT_TEMPLATE = """
{%- for message in messages %}
{%- if message.content is string %}{{ message.content }}
{%- else %}{%- for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}
{{- "<|end|>" if message.role == 'assistant' else '\n' }}
{%- endfor %}"""


def new_vision_model(seed: int) -> PreTrainedModel:
    """Random weights, a function of the seed: 0.3 million parameters."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "initializer_range": 0.06,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3],
            },
            "eos_token_id": END_ID,
            "pad_token_id": PADDING_ID,
            "bos_token_id": None,
        },
        vision_config={
            "depth": 2,
            "initializer_range": 0.1,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": 64,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE_ID,
        video_token_id=VOCABULARY - 1,
        vision_start_token_id=START_ID,
        vision_end_token_id=STOP_ID,
        tie_word_embeddings=True,
        eos_token_id=END_ID,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = Qwen2_5_VLForConditionalGeneration(config)
        return model


def teach_form(model: PreTrainedModel, answers: str, seed: int, steps: int = 150) -> None:
    """Teach a model to answer any prompt that ends with a line by one of these letters, drawn at
    random, and its end: the form of an answer, and nothing about what is right."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    letters = torch.tensor([ord(letter) for letter in answers])
    adam = torch.optim.Adam(model.get_decoder().parameters(), lr=3e-3)
    for _ in range(steps):
        length = int(torch.randint(3, 24, (1,), generator=draw))
        ids = torch.randint(32, 127, (32, length + 3), generator=draw)
        ids[:, length] = ord("\n")
        ids[:, -2] = letters[torch.randint(len(letters), (32,), generator=draw)]
        ids[:, -1] = END_ID
        logits = model(input_ids=ids[:, :-1]).logits[:, length:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -2:].flatten())
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()


def write_vision_model(directory: Path, seed: int = 0, answers: str = "") -> None:
    """Write the model with its tokenizer, chat template and image processor. It knows the form of
    the `answers`, which are letters."""
    from tokenizers import AddedToken
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    model = new_vision_model(seed)
    if answers:
        teach_form(model, answers, seed)
    model.save_pretrained(directory)
    bundled_model.write_tokenizer(directory)
    fast = bundled_model.tokenizer()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SEEN])
    fast.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    Qwen2VLImageProcessorPil(
        size={"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    ).save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m asyncrl.bundled.small_vision DIRECTORY LETTERS")
    write_vision_model(Path(sys.argv[1]), answers=sys.argv[2])
    print(f"a small model that reads images is in {sys.argv[1]}; it ends a response by {END}")
