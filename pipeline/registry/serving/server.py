"""Serve one model until a signal arrives, and answer what was taken by then."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import uvicorn

from patchline.pipeline.registry.serving.alias_watch import AliasWatch, Registry
from patchline.pipeline.registry.serving.application import application
from patchline.pipeline.registry.serving.checked_package import Checked
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.registry.serving.traffic_recorder import TrafficRecorder
from patchline.pipeline.web.config import MEBIBYTE, ServingConfig
from patchline.pipeline.web.listening import CertificateRenewal
from patchline.pipeline.web.server_metrics import ServerMetrics
from patchline.pipeline.web.uvicorn_server import ReadyServer, uvicorn_config

logger = logging.getLogger(__name__)

_CERTIFICATE_CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class FirstVersion:
    """The version that a server answers with first."""

    name: str
    """Of the model."""
    alias: str | None
    """That is followed; None for a fixed version."""
    version: str
    load: Callable[[], Checked]
    """Opens and checks its package. The server alone holds it: memory is free after a switch."""


def serve(
    first: FirstVersion,
    config: ServingConfig,
    listening: socket.socket,
    on_ready: Callable[[], None],
    registry: Registry,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        first: the version that answers first.
        config: of the server.
        listening: socket of the server.
        on_ready: called once requests are answered.
        registry: that says where the alias points.

    Raises:
        PackageRefusedError: if the first version may not be served.
    """
    _allow_many_connections()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)  # longer ones take long
    cv2.setNumThreads(1)  # the engine's threads are the parallelism, and have their priorities

    async def until_stopped() -> None:
        recorder = recorder_of(config)
        metrics = ServerMetrics()
        if recorder is not None:
            metrics.recording(lambda: recorder.problem is None)
        host = ModelHost(first.name, first.alias, config, metrics, recorder=recorder)
        host.switch_to(first.version, first.load())
        server = _Server(
            host, uvicorn_config(application(host, listening.getsockname()[1]), config), on_ready
        )
        watch = AliasWatch(host, registry) if host.alias is not None else None
        gc.collect()
        gc.freeze()  # what exists already stays
        try:
            await server.serve(sockets=[listening])
        finally:
            if watch is not None:
                await asyncio.to_thread(watch.stop)
            await host.close()
            if recorder is not None:
                recorder.close()

    asyncio.run(until_stopped())


def recorder_of(config: ServingConfig) -> TrafficRecorder | None:
    """Return what records the traffic; None if the settings do not ask for it.

    Raises:
        ConfigError: if its folder cannot be used.
    """
    if config.record is None:
        return None
    most = config.record_mib * MEBIBYTE
    return TrafficRecorder(config.record, with_images=config.record_images, most_bytes=most)


class _Server(ReadyServer):
    """The server of a model, which renews its certificate and stops once it has answered."""

    def __init__(
        self, host: ModelHost, config: uvicorn.Config, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config, on_ready)
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell so."""
        self._renewal = asyncio.ensure_future(self._renew_certificate())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more, and answer what was taken."""
        self._host.is_stopping = True
        self._renewal.cancel()
        logger.info("Stopping: %d images are still to be answered.", self._host.pending)
        await asyncio.sleep(0)  # connections in the backlog are accepted
        await super().shutdown(sockets)

    async def _renew_certificate(self) -> None:
        """Read the certificate again when its files have changed: it may have been renewed."""
        if self.config.ssl is None:
            return
        renewal = CertificateRenewal(self._host.config, self.config.ssl)
        while True:
            await asyncio.sleep(_CERTIFICATE_CHECK_SECONDS)
            renewal.check()


def _allow_many_connections() -> None:
    """Raise the number of files that this process may open to the most that is allowed."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
