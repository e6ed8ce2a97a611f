"""Follow an alias: load and check the version that it points to, beside the one that answers."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
import time

from patchline.pipeline.errors import PipelineError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.served_package import (
    MissingExportError,
    RegistryReader,
    fetch_served_package,
    registry_reader,
)
from patchline.pipeline.registry.serving.checked_package import (
    Checked,
    PackageRefusedError,
    check_package,
)
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.waiting import Periodic

logger = logging.getLogger(__name__)

_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 60.0, 960.0
"""After so long, a version that was rejected is tried again: its files may have been restored. If
they could not be fetched, the pause doubles each time, up to the longest one."""
_POLL_SECONDS = 1.0
_STORE = "MLFLOW_TRACKING_URI"


class Registry:
    """The registry, opened again after a failure: its server may have moved to another address."""

    def __init__(self) -> None:
        self._given = os.environ.get(_STORE)
        self._reader: RegistryReader | None = None

    def reader(self) -> RegistryReader:
        """Return a reader.

        Raises:
            PipelineError: if there is none for the store.
        """
        if self._reader is None:
            if self._given is None:
                os.environ.pop(_STORE, None)
            self._reader = registry_reader()
        return self._reader

    def forget(self) -> None:
        """Open it again for the next question."""
        self._reader = None


class AliasWatch:
    """A thread that asks the registry where the alias points.

    Args:
        host: the model host that follows the alias.
        registry: the registry to ask.
    """

    def __init__(self, host: ModelHost, registry: Registry) -> None:
        self._host = host
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._rejected_at = 0.0
        self._pause = _RETRY_SECONDS
        self._has_switched = False
        self._watching = Periodic(self._watch, _POLL_SECONDS)

    def stop(self) -> None:
        """Ask nothing more, and wait a while for a version that is being loaded."""
        self._watching.end()

    def _watch(self) -> None:
        try:
            self.check()
        except Exception:  # the server answers on
            logger.exception("The alias could not be followed.")

    def check(self) -> None:
        """Ask once, and switch if the alias points to another version."""
        host = self._host
        assert host.alias is not None  # noqa: S101 - a fixed version is not watched
        try:
            version = self._registry.reader().version_of(host.name, host.alias)
        except PipelineError as error:
            self._note_away(error)
            return
        self._note_back()
        if version is None:
            self._note_missing()
            return
        host.registry.alias_missing = False
        if version == host.served.version:
            self._note_rejected(None)
            self._return_memory()
        elif self._is_due(version):
            self._take(version)

    def _is_due(self, version: str) -> bool:
        rejected = self._host.registry.rejected
        is_new = rejected is None or rejected[0] != version
        return is_new or time.monotonic() - self._rejected_at > self._pause

    def _take(self, version: str) -> None:
        """Load a version and switch to it; keep the present one if that is refused."""
        host, began = self._host, time.monotonic()
        try:
            folder = fetch_served_package(
                self._registry.reader(), host.name, version, host.config.form
            )
            checked = check_package(folder, host.threads)
        except PackageRefusedError as error:
            self._reject(version, str(error))
            return
        except MissingExportError as error:
            logger.warning("%s", error)
            self._reject(version, f"it has no export as {host.config.form}")
            return
        except PipelineError as error:
            logger.warning("Version %s of %s: %s", version, host.name, error)
            self._reject(version, "its files could not be fetched", is_costly=True)
            return
        except Exception:  # it is not tried every second, whatever the reason
            logger.exception("Version %s of %s could not be loaded.", version, host.name)
            self._reject(version, "it could not be loaded", is_costly=True)
            return
        before = host.served.version
        change = _change_of_classes(host.served.package, checked.package)
        if change and not host.config.allow_new_classes:
            reason = f"{change}. Restart the server, with --allow-new-classes to switch next time"
            self._reject(version, reason, is_costly=True)
            return
        self._switch(version, checked)
        self._has_switched = True
        self._note_rejected(None)
        logger.info(
            "Switched from version %s to version %s of %s; loaded and checked in %.1f s.",
            before, version, host.name, time.monotonic() - began,
        )  # fmt: skip

    def _switch(self, version: str, checked: Checked) -> None:
        """Switch between two requests, in the event loop, and wait until it has."""
        switched = threading.Event()

        def switch() -> None:
            self._host.switch_to(version, checked)
            switched.set()

        self._loop.call_soon_threadsafe(switch)
        while not switched.wait(1.0) and not self._watching.ended.is_set():
            pass

    def _return_memory(self) -> None:
        """Return the memory of the version before to the system, once after a switch."""
        if self._has_switched:
            self._has_switched = False
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
                ctypes.CDLL(None).malloc_trim(0)

    def _reject(self, version: str, reason: str, *, is_costly: bool = False) -> None:
        """Note that a version is not taken; after a costly attempt, wait longer each time."""
        known = self._host.registry.rejected
        is_again = is_costly and known == (version, reason)
        self._pause = min(2 * self._pause, _LONGEST_RETRY_SECONDS) if is_again else _RETRY_SECONDS
        self._rejected_at = time.monotonic()
        self._note_rejected((version, reason))
        if known != (version, reason):
            logger.error(
                "Version %s of %s is not taken: %s. Version %s keeps answering.",
                version, self._host.name, reason, self._host.served.version,
            )  # fmt: skip

    def _note_rejected(self, rejected: tuple[str, str] | None) -> None:
        if self._host.registry.rejected != rejected:
            self._host.registry.rejected = rejected
            self._host.metrics.rejecting(self._host.name, rejected[0] if rejected else None)

    def _note_away(self, error: PipelineError) -> None:
        self._registry.forget()
        if self._host.registry.away_since is None:
            self._host.registry.away_since = time.time()
            self._host.metrics.registry_up.set(0)
            logger.warning("%s Version %s keeps answering.", error, self._host.served.version)

    def _note_back(self) -> None:
        if self._host.registry.away_since is not None:
            self._host.registry.away_since = None
            self._host.metrics.registry_up.set(1)
            logger.info("The registry answers again.")

    def _note_missing(self) -> None:
        if not self._host.registry.alias_missing:
            self._host.registry.alias_missing = True
            logger.warning(
                "%s@%s is no longer in the registry. Version %s keeps answering.",
                self._host.name, self._host.alias, self._host.served.version,
            )  # fmt: skip


def _change_of_classes(before: PackagedModel, after: PackagedModel) -> str:
    """Return what clients of one package would not expect of another; empty if there is nothing."""
    if (before.classes, before.is_multi_label) == (after.classes, after.is_multi_label):
        return ""
    changes = {
        "new": [name for name in after.classes if name not in before.classes],
        "gone": [name for name in before.classes if name not in after.classes],
    }
    named = "; ".join(f"{kind}: {few_names(names)}" for kind, names in changes.items() if names)
    if before.is_multi_label != after.is_multi_label:
        named = named or f"{'several labels' if after.is_multi_label else 'one label'} an image"
    return f"its classes are others than those of the version that answers ({named or 'reordered'})"
