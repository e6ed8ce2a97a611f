"""Who has which image on the screen, so that nobody else is asked about it.

A lease ends some minutes after the page was last heard of. The leases are kept in a file, because a
server that is restarted must not give an image to somebody else that is still on a screen.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from patchline.pipeline.workspace.files.atomic_files import write_text

LEASE_SECONDS = 600.0
MOST_IMAGES = 8
"""Images that a page may have on the screen, or load before they are needed."""
MOST_TOGETHER = 24
"""Near duplicates that are shown with an image."""
MOST_EACH = MOST_IMAGES * (1 + MOST_TOGETHER)
"""Images that one page may hold, near duplicates included: what it may say that it holds, too."""


class Leases:
    """The leases of one server.

    Args:
        file: the file that keeps the leases.
        clock: returns seconds since the epoch, which a restart does not change.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = file, clock
        self._held: dict[str, tuple[str, float]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            for key, (client, end) in json.loads(file.read_text("utf-8")).items():
                self._held[str(key)] = (str(client), min(float(end), clock() + LEASE_SECONDS))

    def holder(self, key: str) -> str | None:
        """Return the page that holds an image; None if nobody does."""
        client, end = self._held.get(key, ("", 0.0))
        return client if end > self._clock() else None

    def is_free(self, key: str, client: str) -> bool:
        """Return whether an image may be given to a page: nobody else holds it."""
        return self.holder(key) in (None, client)

    def take(self, keys: Iterable[str], client: str) -> None:
        """Let a page hold images that are free, in place of what it held, or longer."""
        now = self._clock()
        mine = [key for key in keys if self.is_free(key, client)]
        for key in mine[:MOST_EACH]:
            self._held[key] = (client, now + LEASE_SECONDS)
        self._held = {key: each for key, each in self._held.items() if each[1] > now}
        self._keep()

    def release(self, keys: Iterable[str], client: str) -> None:
        """Let images go that a page holds."""
        for key in keys:
            if self.holder(key) == client:
                del self._held[key]
        self._keep()

    def of(self, client: str) -> list[str]:
        """Return the images that a page holds."""
        return [key for key in self._held if self.holder(key) == client]

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            write_text(self._file, json.dumps(self._held))
