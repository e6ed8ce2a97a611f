"""The digests of a package's files: whether they are what was written when it was packaged.

Inlined into every package, so it needs only the standard library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

DIGESTS_FILE = "digests.json"
"""Beside the other files: the SHA-256 of each by name."""
_NEEDED = ("model.onnx", "model.json", "reference_features.npz")
"""Files that answers depend on; of the others, a copy of a package may leave some out."""


class ChangedPackageError(ValueError):
    """A file of a package that is not what was packaged; the text names no path."""


def write_digests(folder: Path, names: Sequence[str]) -> None:
    """Write the digests of those of the named files that are in a folder."""
    digests = {name: _sha256(folder / name) for name in names if (folder / name).is_file()}
    text = json.dumps({"sha256": digests}, indent=2) + "\n"
    (folder / DIGESTS_FILE).write_text(text, encoding="utf-8")


def check_digests(folder: Path) -> bool:
    """Compare the files of a package with their digests.

    Returns:
        Whether they are known: a package of before has none, and may have been changed.

    Raises:
        ChangedPackageError: if a file was changed, or one that answers depend on is missing.
    """
    file = folder / DIGESTS_FILE
    if not file.is_file():
        return False
    try:
        digests = dict(json.loads(file.read_text(encoding="utf-8"))["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChangedPackageError(f"its file {DIGESTS_FILE} is damaged") from error
    for name, digest in digests.items():
        known = folder / Path(str(name)).name
        if not known.is_file():
            if name in _NEEDED:
                raise ChangedPackageError(f"it lacks the file {name}")
        elif _sha256(known) != digest:
            raise ChangedPackageError(
                f"its file {name} was changed after it was packaged: its SHA-256 is not the one in "
                f"{DIGESTS_FILE}"
            )
    return True


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
