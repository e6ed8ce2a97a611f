"""Decode and predict the images of many requests with one package, in threads.

Images wait in two queues that take turns between requests: to be decoded, and to be computed. What
waits when a thread is free becomes its batch; nothing waits for a batch to fill. Large images are
decoded by a thread of their own, so that small ones do not wait behind them.

An engine belongs to one version. The event loop creates requests and receives their answers; the
threads see nothing of HTTP.

The page sends the image that it got back with some patches covered, so that it only offers an image
that the package would read again as it is.

Shapes: B images, H, W and C of an image, L blocks, K classes; h, w the grid of patches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from starlette.requests import ClientDisconnect

from patchline.pipeline.data.reading.decoding import UndecodableImageError, read_header
from patchline.pipeline.data.reading.jpeg_wholeness import jpeg_frame
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.checked_package import Checked
from patchline.pipeline.web.server_metrics import ServerMetrics

logger = logging.getLogger(__name__)

TOP_K = 5


@dataclass(frozen=True)
class Options:
    """What a request asks for beside the answer."""

    top_k: int = TOP_K
    """Number of classes in an answer."""
    with_map: bool = False
    """Whether an answer says where the model looked."""
    coverage: float | None = None
    """Probability that the set holds the true class; None for the package's own."""
    with_inside: bool = False
    """Whether an answer has what the server's page shows of each block."""
    is_traffic: bool = True
    """Whether the images are recorded, if the server records its traffic."""


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Waiting items in groups; `take` takes one of each group in turn. Safe for several threads."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return self._count

    def is_full_for(self, group: Hashable, most: int) -> bool:
        """Return whether so many other groups wait already."""
        with self._changed:
            return group not in self._groups and len(self._groups) >= most

    def put(self, group: Hashable, items: Iterable[Item]) -> None:
        """Add items behind those of the same group."""
        with self._changed:
            waiting = self._groups.setdefault(group, deque())
            before = len(waiting)
            waiting.extend(items)
            added = len(waiting) - before
            if not waiting:
                del self._groups[group]
            self._count += added
            if added:
                self._changed.notify(added)

    def take(self, most: int, takers: int = 1) -> list[Item]:
        """Wait for items, and return some of them; none once the queue is closed and empty.

        Args:
            most: number of items to take.
            takers: number of threads among which the waiting items are divided.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._closed)
            number = min(most, -(-self._count // takers))
            return [self._next() for _ in range(number)]

    def close(self) -> None:
        """Let `take` return nothing once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> Item:
        group, waiting = self._groups.popitem(last=False)
        item = waiting.popleft()
        if waiting:
            self._groups[group] = waiting
        self._count -= 1
        return item


_READ = 3
"""Classes that are listed after each block."""
_COLOURS = {1: cv2.COLOR_GRAY2BGR, 3: cv2.COLOR_RGB2BGR}
"""By number of channels; images of other numbers have no picture."""


def inside_views(
    package: PackagedModel, pixels: Sequence[np.ndarray[Any, Any]]
) -> list[dict[str, Any]]:
    """Return for each decoded image (H, W, C) what its prediction looks like inside.

    A view has `seen`, the image as a `data:` address, or None if it cannot be shown as it is; and
    `blocks`, for each block its `attention` to the patches (h rows of w numbers) and the most
    probable classes of its `reading`, each None where the package does not have it.
    """
    if not pixels:
        return []
    names = [name for name in ("attention", "readings") if name in package.output_names]
    found = package.named_outputs(np.stack(pixels), names) if names else []
    outputs = dict(zip(names, found, strict=True))
    return [
        {
            "seen": _picture(package, image_HWC),
            "blocks": _blocks(package, {name: values[row] for name, values in outputs.items()}),
        }
        for row, image_HWC in enumerate(pixels)
    ]


def _blocks(package: PackagedModel, of_image: dict[str, Any]) -> list[dict[str, Any]]:
    attention_Lhw, readings_LK = of_image.get("attention"), of_image.get("readings")
    count = max((len(values) for values in of_image.values()), default=0)
    return [
        {
            "attention": None if attention_Lhw is None else attention_Lhw[block].tolist(),
            "reading": None
            if readings_LK is None
            else package.writer.ranked(readings_LK[block], _READ),
        }
        for block in range(count)
    ]


def _picture(package: PackagedModel, image_HWC: np.ndarray[Any, Any]) -> str | None:
    colours = _COLOURS.get(image_HWC.shape[2])
    if colours is None or not package.mapping.is_plain:
        return None
    written, file = cv2.imencode(".png", cv2.cvtColor(np.ascontiguousarray(image_HWC), colours))
    encoded = base64.b64encode(file.tobytes()).decode()
    return f"data:image/png;base64,{encoded}" if written else None


Image = bytes | np.ndarray[Any, Any]
Answer = dict[str, Any]
_Decoded = np.ndarray[Any, Any] | str

_LARGE_BYTES, _LARGE_PIXELS = 4 << 20, 16_000_000
"""Beyond one of these, an image takes tenths of a second to decode."""
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_SIZE = slice(16, 24)
"""Width and height, four bytes each."""
_MOST_LARGE = 8
"""Requests whose large images may wait."""
_LARGE_PRIORITY = 10
"""Niceness of the thread that decodes large images: it uses what the others leave."""
_END_SECONDS = 30.0
"""How long the end of the server waits for a thread that decodes or computes."""
FAILED = "the model failed on this image"


Record = Callable[[Sequence[Image], Sequence[Any]], None]
"""Receives images, and the probabilities (K) and features (D) of each."""


@dataclass(eq=False)
class PendingRequest:
    """The images of one request, and their answers as far as they are known."""

    images: Sequence[Image]
    options: Options
    answers: list[Answer | None] = field(init=False)
    left: int = field(init=False)
    abandoned: bool = False
    """Whether nobody waits for the answers any more."""
    done: asyncio.Future[list[Answer]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin without answers."""
        self.answers = [None] * len(self.images)
        self.left = len(self.images)
        self.done = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        """Compute no more of it, because the client has gone; called in the event loop."""
        self.abandoned = True
        if not self.done.done():
            self.done.set_exception(ClientDisconnect())


class Engine:
    """The threads of one package.

    Args:
        checked: the package, how many threads compute a batch each, and its images at most.
        decoding: number of threads that decode.
        metrics: the server's metrics, which receive what happens, from the engine's threads.
        record: receives what is computed; None to record nothing.
    """

    def __init__(
        self,
        checked: Checked,
        decoding: int,
        metrics: ServerMetrics,
        record: Record | None = None,
    ) -> None:
        self.package = checked.package
        self._record = record
        self.package.keeps_outputs = record is not None
        self.pending = 0
        """Images that were submitted and are not answered; changed in the event loop alone."""
        self._computing, self._max_batch, self._metrics = checked.computing, checked.batch, metrics
        self._loop = asyncio.get_running_loop()
        self._retiring = False
        self._small: FairQueue[tuple[PendingRequest, int]] = FairQueue()
        self._large: FairQueue[tuple[PendingRequest, int]] = FairQueue()
        self._ready: FairQueue[tuple[PendingRequest, int, _Decoded]] = FairQueue()
        self._threads = [
            *(self._thread(f"decode-{each}", self._decode_small) for each in range(decoding)),
            self._thread("decode-large", self._decode_large),
            *(self._thread(f"compute-{each}", self._compute) for each in range(self._computing)),
        ]

    @staticmethod
    def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    @property
    def waiting(self) -> int:
        """Images that no thread has taken yet."""
        return len(self._small) + len(self._large) + len(self._ready)

    def submit(self, images: Sequence[Image], options: Options) -> PendingRequest:
        """Take the images of a request; its future ends with one answer for each, in order."""
        work = PendingRequest(images, options)
        self.pending += len(images)
        self._small.put(work, [(work, position) for position in range(len(images))])
        return work

    def retire(self) -> None:
        """End the threads once everything that was submitted is answered."""
        self._retiring = True
        self._end_if_idle()

    def wait(self) -> None:
        """Wait for the threads of a retired engine: at its end, Python aborts in native code."""
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _end_if_idle(self) -> None:
        if self._retiring and not self.pending:
            for queue in (self._small, self._large, self._ready):
                queue.close()

    # -- in the threads ------------------------------------------------------------------------

    def _decode_small(self) -> None:
        while taken := self._small.take(1):
            [(work, position)] = taken
            if work.abandoned or not _is_large(work.images[position]):
                self._decode(work, position)
            elif self._large.is_full_for(work, _MOST_LARGE):
                work.answers[position] = {"error": "busy", "busy": True}
                self._loop.call_soon_threadsafe(self._note, [work])
            else:
                self._large.put(work, [(work, position)])

    def _decode_large(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # of this thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LARGE_PRIORITY)
        while taken := self._large.take(1):
            [(work, position)] = taken
            self._decode(work, position)

    def _decode(self, work: PendingRequest, position: int) -> None:
        pixels: _Decoded = ""
        if not work.abandoned:
            began = time.perf_counter()
            try:
                pixels = self.package.pixels(work.images[position], paths=False)
            except UndecodableImageError as error:
                pixels = str(error)
            except Exception:
                logger.exception("An image could not be decoded.")
                pixels = "its decoder failed"
            self._metrics.decoded(time.perf_counter() - began, readable=not isinstance(pixels, str))
        self._ready.put(work, [(work, position, pixels)])

    def _compute(self) -> None:
        while batch := self._ready.take(self._max_batch, self._computing):
            alive = [each for each in batch if not each[0].abandoned]
            answered = self._answered([(work, pixels) for work, _, pixels in alive])
            if self._record is not None:
                self._note_outputs([(work, place) for work, place, _ in alive], answered)
            for (work, position, _), answer in zip(alive, answered, strict=True):
                work.answers[position] = answer
            self._loop.call_soon_threadsafe(self._note, [work for work, _, _ in batch])

    def _note_outputs(
        self, batch: Sequence[tuple[PendingRequest, int]], answers: Sequence[Answer]
    ) -> None:
        """Take the outputs out of the answers, and record those of the traffic with its images."""
        outputs = [answer.pop("outputs", None) for answer in answers]
        computed = [
            (work.images[place], output)
            for (work, place), output in zip(batch, outputs, strict=True)
            if output is not None and work.options.is_traffic
        ]
        if self._record is None or not computed:
            return
        try:
            self._record([image for image, _ in computed], [output for _, output in computed])
        except Exception:  # whoever asked gets the answer all the same
            logger.exception("An answer could not be recorded.")

    def _answered(self, batch: list[tuple[PendingRequest, _Decoded]]) -> list[Answer]:
        """Return the answers of a batch; if it fails, those of each image alone."""
        readable = sum(not isinstance(pixels, str) for _, pixels in batch)
        began = time.perf_counter()
        try:
            answers = _answers(self.package, batch)
        except Exception:
            logger.exception("The network failed on a batch of %d images.", readable)
            if len(batch) == 1:
                return [{"error": FAILED, "failed": True}]
            return [answer for each in batch for answer in self._answered([each])]
        if readable:
            self._metrics.computed(readable, time.perf_counter() - began)
        return answers

    # -- in the event loop ---------------------------------------------------------------------

    def _note(self, works: list[PendingRequest]) -> None:
        self.pending -= len(works)
        for work in works:
            work.left -= 1
            if not work.left and not work.done.done():
                work.done.set_result([answer or {} for answer in work.answers])
        self._end_if_idle()


def _answers(package: PackagedModel, batch: list[tuple[PendingRequest, _Decoded]]) -> list[Answer]:
    """Return the package's answers; what is asked for in the same way is computed together."""
    groups: dict[tuple[bool, bool, float | None], list[int]] = {}
    for position, (work, _) in enumerate(batch):
        wanted = work.options
        key = wanted.with_map, wanted.with_inside, wanted.coverage
        groups.setdefault(key, []).append(position)
    answers: list[Answer] = [{} for _ in batch]
    for (with_map, with_inside, coverage), positions in groups.items():
        top_k = max(batch[each][0].options.top_k for each in positions)
        decoded = [batch[each][1] for each in positions]
        found = package.answers_to(decoded, top_k, coverage=coverage, with_map=with_map)
        for position, answer in zip(positions, found, strict=True):
            most = batch[position][0].options.top_k
            answers[position] = {**answer, "top_k": answer["top_k"][:most]}
        if with_inside:
            pixels = {
                each: image_HWC
                for each in positions
                if not isinstance(image_HWC := batch[each][1], str)
            }
            views = inside_views(package, list(pixels.values()))
            for position, view in zip(pixels, views, strict=True):
                answers[position].update(view)
    return answers


def _is_large(image: Image) -> bool:
    """Return whether an image takes long to decode, as far as its first bytes tell."""
    if isinstance(image, np.ndarray):
        return image.nbytes > _LARGE_PIXELS
    if len(image) > _LARGE_BYTES:
        return True
    try:
        width, height = _size(image)
    except Exception:  # noqa: BLE001 - its decoding will give the reason
        return False
    return width * height > _LARGE_PIXELS


def _size(image: bytes) -> tuple[int, int]:
    if image.startswith(_JPEG) and (frame := jpeg_frame(image)):
        return frame.width, frame.height
    if image.startswith(_PNG):
        size = image[_PNG_SIZE]
        return int.from_bytes(size[:4], "big"), int.from_bytes(size[4:], "big")
    header = read_header(image)
    return header.width, header.height


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
