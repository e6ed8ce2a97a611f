"""Real disks that are soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of a few MiB; only where the tests may mount."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield place
    finally:
        os.chdir(place.parent)
        subprocess.run(["umount", str(place)], check=True)
