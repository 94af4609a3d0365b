"""Images of a run that are fetched, `RUN/fetched/SHA256-OF-THE-URL`: the hash under which each is
kept. Invariant: what a URL gave when the run began is what it is to the run, and is asked for once.

The launcher fetches what the prompts name before anything starts, so no actor waits for a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path

from asyncrl.escape import escaped
from asyncrl.files import read_regular, write_whole
from asyncrl.tasks.images.fetching import fetched
from asyncrl.tasks.images.image_decoder import decoded_image, image_bytes
from asyncrl.tasks.images.image_source import ImageSource
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import written_png

AT_A_TIME = 8
"""Images that are fetched at a time."""


class FetchedImages:
    """The images of URLs in a run's `folder`, which are kept in a `store`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images = FetchedImages(Path(folder), KeptImages(Path(folder)))
    ...     images.bytes_of(ImageSource(url="https://example.org/7.png"))
    Traceback (most recent call last):
    LookupError: its image https://example.org/7.png was not fetched when the run began
    """

    def __init__(self, folder: Path, store: KeptImages) -> None:
        self._folder, self._store = folder, store

    def bytes_of(self, source: ImageSource) -> bytes:
        """The encoded bytes of an image of a prompt. Raises LookupError."""
        if not source.url:
            return image_bytes(source)
        try:
            return self._store.png(read_regular(self._file(source.url), 64).decode())
        except (OSError, ValueError) as error:
            raise LookupError(
                f"its image {escaped(source.url, 200)} was not fetched when the run began"
            ) from error

    def has(self, url: str) -> bool:
        """True if an image was fetched."""
        return self._file(url).exists()

    def keep(self, url: str, data: bytes) -> None:
        """Keep what a URL gave. Raises LookupError for no image, OSError and ImagesFull."""
        name = self._store.keep(written_png(decoded_image(data, url)))
        self._folder.mkdir(exist_ok=True)
        write_whole(self._file(url), name, forced=False)

    def _file(self, url: str) -> Path:
        return self._folder / sha256(url.encode()).hexdigest()


def fetch_images(sources: Iterable[ImageSource], images: FetchedImages) -> tuple[int, list[str]]:
    """Fetch those of these images that have a URL, and were not fetched. Returns how many it asked
    for, and the end of a sentence for each that it did not get. Raises OSError and ImagesFull."""
    wrong, count, absent = list[str](), 0, _absent(sources, images)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while some := list(islice(absent, AT_A_TIME)):
            for source, found in zip(some, pool.map(_fetched, some), strict=True):
                try:
                    if isinstance(found, LookupError):
                        raise found
                    images.keep(source.url, found)
                except LookupError as error:
                    wrong.append(str(error))
            count += len(some)
    return count, wrong


def _fetched(source: ImageSource) -> bytes | LookupError:
    try:
        return fetched(source.url, source.hosts)
    except LookupError as error:
        return error


def _absent(sources: Iterable[ImageSource], images: FetchedImages) -> Iterator[ImageSource]:
    seen = set[str]()
    for source in sources:
        if source.url and source.url not in seen and not images.has(source.url):
            seen.add(source.url)
            yield source
