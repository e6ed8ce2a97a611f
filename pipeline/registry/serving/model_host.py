"""The model that a server answers with: its engine, its limits, and the switch to another version.

Everything here runs in the event loop; the threads of the engines and of the watch of the alias
call in through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.checked_package import Checked
from patchline.pipeline.registry.serving.engine import FAILED, Engine, Image, Options, cores
from patchline.pipeline.registry.serving.traffic_recorder import TrafficRecorder
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.request_body import Refusal, bad_request, busy
from patchline.pipeline.web.request_headers import Scope
from patchline.pipeline.web.server_metrics import ServerMetrics
from patchline.pipeline.web.uvicorn_server import while_present

_FIRST_RATE = 50.0
"""Images per second, until it is measured."""
_LEAST_RATE = 0.1
_MEASURED_SECONDS = 10.0
"""Of work, after which the rate is that of the time since it was measured last."""
_MOST_TOGETHER = 16
"""Images that the network computes together at most."""


class Throughput:
    """Measures the rate of answers over the time in which there is work; in the event loop alone.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = _FIRST_RATE
        self._requests = 0
        self._busy_since = 0.0
        self._busy_seconds = 0.0
        self._answered = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time of the block, in which a request waits for its answer."""
        self._pass_time()
        self._requests += 1
        try:
            yield
        finally:
            self._pass_time()
            self._requests -= 1

    def answered(self, images: int) -> None:
        """Count images that were answered."""
        self._answered += images
        self._pass_time()
        if self._busy_seconds > _MEASURED_SECONDS:
            self._rate = max(_LEAST_RATE, self._answered / self._busy_seconds)
            self._busy_seconds, self._answered = 0.0, 0

    def seconds_for(self, images: int) -> float:
        """Return how long so many images probably take."""
        return images / self._rate

    def _pass_time(self) -> None:
        now = self._clock()
        if self._requests:
            self._busy_seconds += now - self._busy_since
        self._busy_since = now


@dataclass(frozen=True)
class Served:
    """One version while it answers."""

    version: str
    engine: Engine

    @property
    def package(self) -> PackagedModel:
        """Its package."""
        return self.engine.package


@dataclass(frozen=True)
class Answers:
    """What one request is answered with: every answer is from the same version."""

    version: str
    answers: list[dict[str, Any]]


@dataclass
class RegistryState:
    """What the watch of the alias has found last."""

    away_since: float | None = None
    """When the registry stopped answering (seconds since 1970); None if it answers."""
    alias_missing: bool = False
    """Whether the alias, or the whole model, is gone from the registry."""
    rejected: tuple[str, str] | None = None
    """The version that the alias points to but that failed its check, and the reason."""


@dataclass
class ModelHost:
    """The model of a server.

    Args:
        name: the name of the registered model.
        alias: the alias to follow; None for a fixed version.
        config: the server's settings.
        metrics: the server's metrics.
    """

    name: str
    alias: str | None
    config: ServingConfig
    metrics: ServerMetrics
    registry: RegistryState = field(default_factory=RegistryState)
    recorder: TrafficRecorder | None = None
    """Records what is computed; None unless the settings ask for it."""
    is_stopping: bool = False
    """Whether the server ends once it has answered what it has taken."""
    _served: Served | None = None
    _retired: list[Engine] = field(default_factory=list)
    _throughput: Throughput = field(default_factory=Throughput)

    @property
    def served(self) -> Served:
        """The version that answers.

        Raises:
            Refusal: before the first one is loaded.
        """
        if self._served is None:
            raise busy("The model is being loaded. Try again.")
        return self._served

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered: once a model is loaded, until the server ends."""
        return self._served is not None and not self.is_stopping

    @property
    def ready_status(self) -> HTTPStatus:
        """The status with which the server says whether it is ready."""
        return HTTPStatus.OK if self.is_ready else HTTPStatus.SERVICE_UNAVAILABLE

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return self.config.threads or cores()

    @property
    def pending(self) -> int:
        """Images that were taken and are not answered."""
        self._retired = [each for each in self._retired if each.pending]
        return sum(engine.pending for engine in self._engines)

    @property
    def waiting(self) -> int:
        """Images that no thread has taken yet."""
        return sum(engine.waiting for engine in self._engines)

    @property
    def _engines(self) -> list[Engine]:
        return [*self._retired, *([self._served.engine] if self._served else [])]

    def switch_to(self, version: str, checked: Checked) -> None:
        """Answer the next request with another version; the old one answers what it has taken."""
        checked = checked._replace(batch=min(_MOST_TOGETHER, checked.batch))
        record = partial(self.recorder.record, self.name, version) if self.recorder else None
        engine = Engine(checked, self.threads, self.metrics, record)
        before, self._served = self._served, Served(version, engine)
        if before is not None:
            self.metrics.switches.inc()
            before.engine.retire()
            self._retired = [each for each in (*self._retired, before.engine) if each.pending]
        self.metrics.serving(self.name, version)

    async def close(self) -> None:
        """Wait until nothing is computed any more; what nobody waits for is left out."""
        if self._served is not None:
            self._served.engine.retire()
            self._retired.append(self._served.engine)
        for engine in self._retired:
            await asyncio.to_thread(engine.wait)

    def check_name(self, name: str, version: str | None = None) -> Served:
        """Return the version that a request names.

        Raises:
            Refusal: if it is another model, or a version that does not answer.
        """
        served = self.served
        if name != self.name:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"The model {name[:100]!r} is not served here. The model here is {self.name!r}.",
            )
        if version is not None and version != served.version:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"Version {version[:20]!r} of {self.name!r} is not served here. Version "
                f"{served.version} is.",
            )
        return served

    def check_room(self, images: int = 1) -> None:
        """Check that so many more images may wait.

        Raises:
            Refusal: if they may not, with the time after which they probably may.
        """
        pending = self.pending
        if pending and pending + images > self.config.max_queue:
            raise self._busy(f"The queue is full ({pending} images). Try again.")
        if images > self.config.max_queue:
            raise bad_request(
                f"The request has {images} images, but at most {self.config.max_queue} may wait. "
                "Send several requests."
            )

    async def answers(self, images: Sequence[Image], options: Options, scope: Scope) -> Answers:
        """Return the answers to the images of a request.

        Args:
            images: the images to answer, in order.
            options: the request's options.
            scope: the request's ASGI scope; if its client goes, no more of its images are computed.

        Raises:
            ClientDisconnect: if the client has gone.
            Refusal: if too many wait already, it took too long, or the network failed.
        """
        served = self.served
        self.check_room(len(images))
        limit = self.config.time_limit
        work = served.engine.submit(images, options)
        try:
            with self._throughput.working(), while_present(scope, work.give_up):
                async with asyncio.timeout(limit):
                    found = await work.done
        except TimeoutError:
            raise self._busy(f"The answer took longer than {limit:g} s. Try again.") from None
        finally:
            work.abandoned = True  # if nobody waits any more, nothing more is computed
        self._throughput.answered(len(images))
        if any(answer.get("busy") for answer in found):
            raise busy("Too many large images wait to be decoded. Try again, or send smaller ones.")
        if any(answer.get("failed") for answer in found):
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"Sorry, {FAILED}.")
        self._note(served, found)
        return Answers(served.version, found)

    def _busy(self, sentence: str) -> Refusal:
        """Return a refusal with the time after which what waits now is probably answered.

        That is never longer than the time limit, after which all of it is answered or given up.
        """
        seconds = self._throughput.seconds_for(self.pending)
        return busy(sentence, min(seconds, self.config.time_limit))

    def _note(self, served: Served, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            if answer.get("error") is None:
                self.metrics.answered(served.version, answer)
            for warning in answer.get("warnings") or ():
                self.metrics.warnings.labels(str(warning["kind"])).inc()
