"""Which images an earlier search has compared, so that only new ones are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from patchline.pipeline.data.manifests.scanning import digest_of_root
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.workspace import workspace_of

Array = np.ndarray[Any, Any]

_CODE = "patchline.pipeline.data.near_duplicates.search"
_MOST_NEW = 0.5
"""With a larger share of new images, all are compared: it takes no longer, and finds as much."""


def version() -> str:
    """Return a digest of the code of the search; another version may find other pairs."""
    return stage_keys.code(_CODE)


class SearchMemory:
    """The images of the last search in a folder or an archive.

    Args:
        root: the folder or archive.
        workspace: the folder `.patchline`.
        fresh: forget what is there.
    """

    def __init__(self, root: Path, workspace: Path, *, fresh: bool = False) -> None:
        digest = digest_of_root(root, version())
        self.file = workspace / "near_duplicates" / f"{digest}.npz"
        self._fresh = fresh

    def recall(self, keys_N: Array) -> tuple[Array | None, Array]:
        """Return the images that have not been compared yet, and the pairs of the others.

        Args:
            keys_N: what identifies each image, as bytes; no two are equal.

        Returns:
            The places of the new images, None if all are to be compared; pairs of places (2, P).
        """
        nothing = None, np.zeros((2, 0), np.int64)
        if not self._fresh:
            workspace_of(self.file).fetch_file(self.file)
        if self._fresh or not self.file.is_file():
            return nothing
        try:
            with np.load(self.file, allow_pickle=False) as held:
                earlier_M, pairs = held["keys"], held["pairs"]
            order = np.argsort(keys_N)
            found_M = np.searchsorted(keys_N, earlier_M, sorter=order)
            places_M = order[np.minimum(found_M, len(keys_N) - 1)]
            places_M[keys_N[places_M] != earlier_M] = -1
            there = (places_M[pairs] >= 0).all(axis=0)
        except (OSError, ValueError, KeyError, IndexError, EOFError, BadZipFile):
            return nothing  # it is damaged, so all images are compared
        new_N = np.ones(len(keys_N), np.bool_)
        new_N[places_M[places_M >= 0]] = False
        if new_N.mean() > _MOST_NEW:
            return nothing
        return np.flatnonzero(new_N), places_M[pairs[:, there]]

    def keep(self, keys_N: Array, pairs: Array) -> None:
        """Remember that these images have been compared, and their pairs of places (2, P)."""
        with open_replacing(self.file) as opened:
            np.savez(opened, keys=keys_N, pairs=pairs)
        workspace_of(self.file).send_file(self.file)
