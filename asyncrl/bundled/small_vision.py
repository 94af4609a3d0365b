"""A small model that reads images, to try them on a laptop: `python -m asyncrl.bundled.small_vision
DIRECTORY ROWS.jsonl` writes one that has seen a few of the rows' own answers. Invariant: it is
built in code, and written as an ordinary Hugging Face model directory.

A Qwen2.5-VL (in tests also a Qwen3-VL) of random weights over single bytes, as the bundled model
is. An image of 56 × 56 is four tokens.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.bundled import bundled_model
from asyncrl.bundled.bundled_model import END_ID, PADDING_ID

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


Family = Literal["qwen2_5_vl", "qwen3_vl"]
"""A family of models that read images."""
PATCH: dict[Family, int] = {"qwen2_5_vl": 14, "qwen3_vl": 16}
"""Pixels of the side of a patch."""


def new_vision_model(seed: int, family: Family = "qwen2_5_vl") -> PreTrainedModel:
    """Random weights, a function of the seed: 0.3 million parameters."""
    import torch
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
    )

    third = family == "qwen3_vl"
    own: dict[str, object] = {"window_size": 112, "fullatt_block_indexes": [1]}
    if third:
        own = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    config: Any = (Qwen3VLConfig if third else Qwen2_5_VLConfig)(
        text_config={
            "vocab_size": VOCABULARY,
            "initializer_range": 0.06,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3],
                **({"mrope_interleaved": True} if third else {}),
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
            "patch_size": PATCH[family],
            "spatial_merge_size": 2,
            **own,
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
        made: Any = Qwen3VLForConditionalGeneration if third else Qwen2_5_VLForConditionalGeneration
        model: PreTrainedModel = made(config)
        return model


def teach(directory: Path, rows: Path, accuracy: float, seed: int = 0, steps: int = 600) -> float:
    """Teach the model of a directory the rows' own answers, until right ones have so large a chance
    in the mean; its tower for images stays as it is. Returns the chance that was reached."""
    import numpy as np
    import torch

    from asyncrl.config.schema import TaskConfig
    from asyncrl.messages import MicroBatch, PromptFacts, Sample, Span
    from asyncrl.tasks.data.data_task import DataTask
    from asyncrl.tasks.images.kept_images import KeptImages
    from asyncrl.tasks.images.vision_model import ModelImages, VisionModel
    from asyncrl.tasks.prompt import ChatPrompt
    from asyncrl.tasks.text import Tokenizer
    from asyncrl.training.batch import read
    from asyncrl.training.forward import log_probabilities
    from asyncrl.training.models import load_model
    from asyncrl.training.shown_images import TrainedImages, freeze_tower

    model, tokenizer = load_model(directory), Tokenizer(directory, chat=True)
    freeze_tower(model)
    task, draw, reached = (
        DataTask(TaskConfig(name="data", path=str(rows))),
        random.Random(seed),
        0.0,
    )
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        store = KeptImages(Path(folder))
        images = TrainedImages(ModelImages(store, VisionModel(directory)), model)
        for _ in range(steps):
            samples, every, facts = list[Sample](), list[int](), dict[int, PromptFacts]()
            for number in (draw.randrange(task.size("train")) for _ in range(32)):
                prompt, answer = task.prompt("train", number), task.answer("train", number)
                assert isinstance(prompt, ChatPrompt) and answer is not None
                ids, pngs = tokenizer.encode_shown(prompt)
                said = [*tokenizer.ids(answer), END_ID]
                span = Span(0, len(ids), len(ids) + len(said))
                samples.append(Sample(len(samples), number, len(ids), len(said), 1.0, [span]))
                facts[number] = PromptFacts(number, images=tuple(map(store.keep, pngs)))
                every += [*ids, *said]
            count = sum(sample.response_tokens for sample in samples)
            batch = MicroBatch(0, 0, samples, {}, prompts=facts)
            buffers = [np.array(every, np.int32).tobytes(), bytes(4 * count), b"\x01" * count]
            known = torch.zeros(count)
            for packed in read(batch, buffers, shared=True, images=images).packed:
                found = log_probabilities(model, packed, 1.0)
                (-found.sum() / count).backward()  # type: ignore[no-untyped-call]
                known[packed.tokens] = found.detach()
            adam.step()
            adam.zero_grad()
            of = torch.repeat_interleave(torch.tensor([s.response_tokens for s in samples]))
            right = torch.zeros(len(samples)).index_add(0, of, known).exp().mean()
            reached = 0.7 * reached + 0.3 * float(right)
            if reached >= accuracy:
                break
    model.save_pretrained(directory)
    return reached


def write_vision_model(directory: Path, seed: int = 0, family: Family = "qwen2_5_vl") -> None:
    """Write the model with its tokenizer, chat template and image processor."""
    from tokenizers import AddedToken
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    new_vision_model(seed, family).save_pretrained(directory)
    bundled_model.write_tokenizer(directory)
    fast = bundled_model.tokenizer()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SEEN])
    fast.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    side = 2 * PATCH[family]
    Qwen2VLImageProcessorPil(
        patch_size=PATCH[family],
        size={"shortest_edge": side**2, "longest_edge": (4 * side) ** 2},
    ).save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m asyncrl.bundled.small_vision DIRECTORY ROWS.jsonl")
    write_vision_model(Path(sys.argv[1]))
    share = teach(Path(sys.argv[1]), Path(sys.argv[2]), accuracy=0.3)
    print(f"a small model is in {sys.argv[1]}; right answers have a chance of {share:.0%}")
