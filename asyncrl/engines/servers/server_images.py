"""Images of requests to a server that reads them itself. Invariant: they are sent as the model's
own processor scales them, so the server's has nothing to scale, and both read the same numbers.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.protocol import Request
from asyncrl.tasks.images.pixels import written_png
from asyncrl.tasks.images.vision_model import ImageRows, ModelImages

KEPT_CHARACTERS = 2**27
"""Characters of encoded images that an actor keeps beside those it sends."""


class ServerImages:
    """The images of a run, for the requests of one actor. Each is encoded once, as long as it is
    among the KEPT_CHARACTERS that were sent last."""

    def __init__(self, images: ModelImages) -> None:
        self._images = images
        self._kept = OrderedDict[str, str]()
        self._characters = 0

    def options(self, request: Request, ids: NDArray[np.int32]) -> dict[str, Any]:
        """The `ids`, `images` and `expanded` of `ServerClient.generate` for a request's ids and
        what is known of its response. Raises ValueError where an image cannot be read, the ids are
        not its, or the text has the id that stands for images: a server takes that for one."""
        token = self._images.model.token
        prompt = len(request.ids) - request.prefix_tokens
        marked, shown = self._images.told_apart(ids, prompt, request.images, ImageRows())
        if (marked == token).any():
            raise ValueError(f"the text has the id {token}, which a server takes for an image")
        places = np.flatnonzero(marked < 0)
        tokens = np.array([self._images.tokens(name) for name in shown], np.int64)
        first = places[np.cumsum(tokens) - tokens]
        sent = marked.copy()
        sent[first] = token
        return {
            "ids": sent[sent >= 0],
            "images": [self._encoded(name) for name in shown],
            "expanded": len(ids),
        }

    def _encoded(self, name: str) -> str:
        """An image as it is sent: a PNG in base64."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        scaled = self._images.model.scaled(self._images.store.pixels(name))
        made = self._kept[name] = base64.b64encode(written_png(scaled)).decode()
        self._characters += len(made)
        while self._characters > KEPT_CHARACTERS and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._characters -= len(oldest)
        return made
