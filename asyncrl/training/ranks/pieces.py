"""The pieces of a model that ranks gather and divide as one."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def pieces(model: PreTrainedModel) -> list[nn.Module]:
    """Modules in the order in which they are divided; what is inside of an earlier one is its own:
    layers, which are what transformers never splits; the embedding of ids, where no other module
    has its weights; and the model, with what is left."""
    layers = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in layers]
    embedding: nn.Module = model.get_input_embeddings()
    output: nn.Module | None = model.get_output_embeddings()
    if output is None or embedding.weight is not output.weight:
        found.append(embedding)
    return [*found, model]
