"""The launcher that starts the workers of this process; without another one, this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from patchline.pipeline.workers.launcher import Launcher
from patchline.pipeline.workers.local_launcher import LocalLauncher

_LOCAL = LocalLauncher()
_used: list[tuple[str, Launcher]] = []
"""The launchers of the enclosing `using` blocks; one process runs one line of stages."""


def current() -> Launcher:
    """Return the launcher that starts the workers of this process."""
    return _used[-1][1] if _used else _LOCAL


@contextmanager
def using(description: str, build: Callable[[], Launcher]) -> Iterator[Launcher]:
    """Start workers with another launcher inside the block, and close it at the end.

    Args:
        description: of the launcher with its settings; an outer block with the same one is used.
        build: returns the launcher.
    """
    if _used and _used[-1][0] == description:
        yield _used[-1][1]
        return
    launcher = build()
    _used.append((description, launcher))
    try:
        yield launcher
    finally:
        _used.pop()
        launcher.close()
