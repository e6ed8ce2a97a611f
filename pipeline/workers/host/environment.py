"""Environment variables that are changed for a while."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def restored_variables(names: Iterable[str]) -> Iterator[dict[str, str | None]]:
    """Restore some variables when the block ends, whatever it has made of them.

    Yields:
        Their values before; None for one that is not set.
    """
    before = {name: os.environ.get(name) for name in names}
    try:
        yield before
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
