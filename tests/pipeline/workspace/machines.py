"""Machines that share a workspace: working directories of their own, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE


@contextlib.contextmanager
def machine(name: str, uri: str) -> Iterator[Path]:
    """Work as a machine, in a folder of its name; yield its folder `.patchline`."""
    Path(name).mkdir(exist_ok=True)
    with contextlib.chdir(name):
        chosen.use(uri)
        assert chosen.find_shared_files() is not None
        yield WORKSPACE.resolve()
