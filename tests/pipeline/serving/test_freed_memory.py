"""A version that no longer answers leaves the memory, also the one that answered first."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref

import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.serving import server
from patchline.pipeline.serving.alias_watch import Registry as AskedRegistry
from patchline.pipeline.serving.checked_package import (
    Checked,
    PackageRefusedError,
    checked_package,
)
from patchline.pipeline.serving.config import ServingConfig
from tests.patience import patient
from tests.pipeline.serving.served import NAME, Registry


def test_the_first_version_is_freed_after_a_switch(own_registry: Registry) -> None:
    """It took its memory for as long as the server ran, because its starter still held it."""
    second = own_registry.add(2, alias=None)
    config = ServingConfig(port=0, poll_seconds=0.05)
    packages: list[weakref.ref[PackagedModel]] = []
    freed: list[bool] = []

    def load() -> Checked:
        checked = checked_package(own_registry.folder / "packages" / "1", threads=1)
        packages.append(weakref.ref(checked.package))
        return checked

    def switch_and_stop() -> None:
        own_registry.point("champion", second)
        end = time.monotonic() + patient(30)
        while packages[0]() is not None and time.monotonic() < end:
            time.sleep(0.02)
        freed.append(packages[0]() is None)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=switch_and_stop)
    with server.listening_socket(config) as listening:
        first = server.FirstVersion(NAME, "champion", "1", load)
        server.serve(first, config, listening, stopping.start, AskedRegistry())
    stopping.join()
    assert freed == [True]


def test_a_first_version_that_is_refused_ends_the_server(own_registry: Registry) -> None:
    """Its error is the caller's, as before the first request."""
    (own_registry.folder / "packages" / "1" / "artifacts" / "model.onnx").write_bytes(b"damaged")
    config = ServingConfig(port=0)
    folder = own_registry.folder / "packages" / "1"
    first = server.FirstVersion(NAME, None, "1", lambda: checked_package(folder, 1))
    with (
        server.listening_socket(config) as listening,
        pytest.raises(PackageRefusedError, match="damaged"),
    ):
        server.serve(first, config, listening, lambda: None, AskedRegistry())
