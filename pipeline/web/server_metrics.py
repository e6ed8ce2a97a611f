"""What `/metrics` tells, in the format of Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_KEPT_VERSIONS = 4
"""A server that follows an alias for years counts the classes of its last versions alone."""


class ServerMetrics:
    """The counters of one server; the engines report to it from their threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("patchline_requests", "Requests answered.", ["path", "status"])
        self.seconds = histogram(
            "patchline_request_seconds",
            "Seconds from the head of a request to its answer.",
            ["path"],
            buckets=_SECONDS,
        )
        self.refused = counter(
            "patchline_refused_requests",
            "Requests that were not answered with a prediction, by reason.",
            ["reason"],
        )
        self.waiting = gauge("patchline_queue_images", "Images that wait for a thread.")
        self.pending = gauge("patchline_pending_images", "Images that were taken, not answered.")
        self.batches = histogram(
            "patchline_batch_images", "Images that the network computed together.", buckets=_IMAGES
        )
        self.compute_seconds = histogram(
            "patchline_batch_seconds", "Seconds that a batch took.", buckets=_SECONDS
        )
        self.decode_seconds = histogram(
            "patchline_decode_seconds", "Seconds to decode and resize an image.", buckets=_SECONDS
        )
        self.unreadable = counter(
            "patchline_unreadable_images", "Images that could not be decoded."
        )
        self.predicted = counter(
            "patchline_predicted_images",
            "Images by predicted class; with several labels for each image, by each of them.",
            ["version", "label"],
        )
        self.without_label = counter(
            "patchline_images_without_label",
            "Images that were given no label by a model with several for each.",
            ["version"],
        )
        self.warnings = counter("patchline_image_warnings", "Warnings about images.", ["kind"])
        self.model = gauge("patchline_model_info", "The version that answers.", ["name", "version"])
        self.switches = counter("patchline_model_switches", "Switches to another version.")
        self.rejected = gauge(
            "patchline_rejected_model_info",
            "The version that the alias points to and that failed its check.",
            ["name", "version"],
        )
        self.registry_up = gauge("patchline_registry_up", "Whether the registry answers.")
        self.registry_up.set(1)
        self._labels: dict[str, set[str]] = {}
        """Those that were counted for each version, the present one last."""

    def decoded(self, seconds: float, *, readable: bool) -> None:
        """Note an image that was decoded."""
        self.decode_seconds.observe(seconds)
        if not readable:
            self.unreadable.inc()

    def answered(self, version: str, answer: Mapping[str, Any]) -> None:
        """Note which class, or which labels, an image was given."""
        given = [each["label"] for each in answer.get("labels", [answer])]
        for label in given:
            self.predicted.labels(version, label).inc()
        self._labels.setdefault(version, set()).update(given)
        if not given:
            self.without_label.labels(version).inc()

    def computed(self, images: int, seconds: float) -> None:
        """Note a batch."""
        self.batches.observe(images)
        self.compute_seconds.observe(seconds)

    def serving(self, name: str, version: str) -> None:
        """Note which version answers, and forget the counts of much earlier ones."""
        self.model.clear()
        self.model.labels(name, version).set(1)
        self._labels[version] = self._labels.pop(version, set())
        for old in list(self._labels)[:-_KEPT_VERSIONS]:
            for label in self._labels.pop(old):
                self.predicted.remove(old, label)
            with contextlib.suppress(KeyError):  # it gave every image a label
                self.without_label.remove(old)

    def rejecting(self, name: str, version: str | None) -> None:
        """Note which version failed its check, or that none did."""
        self.rejected.clear()
        if version is not None:
            self.rejected.labels(name, version).set(1)

    def recording(self, works: Callable[[], bool]) -> None:
        """Tell whether traffic is recorded; without this, the metric does not exist.

        Args:
            works: the function that tells whether traffic is recorded, called whenever the metrics
                are asked for.
        """
        up = Gauge("patchline_recording_up", "Whether traffic is recorded.", registry=self.registry)
        up.set_function(lambda: float(works()))

    def text(self) -> bytes:
        """Return all of it."""
        return generate_latest(self.registry)
