"""What this user may read: the store names folders of other users of the machine, too."""

from __future__ import annotations

import os
from pathlib import Path


def is_readable(path: Path) -> bool:
    """Return whether a file or folder exists and may be read; never raises."""
    if not os.access(path, os.R_OK):
        return False
    return path.is_file() or os.access(path, os.X_OK)
