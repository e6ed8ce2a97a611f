"""Earlier assignments to splits: `.patchline/splits/…`, one file for each way of splitting.

A file is addressed by the version of the rule, the split seed, and the shares of the splits. So
datasets that share images agree about them, and another `data.split_seed` starts from scratch. It
holds content digests and group names, each with its split; names of groups belong to the dataset
(`flowers/plant 7`), because another one may use the same for other groups. A file is written
atomically, under a lock that dies with its holder; existing entries never change.

In a shared workspace the store has the file, and the lock keeps apart the runs of this machine
alone. The file is replaced there only if it is still the one that was read; if another machine was
faster, its entries count, and the images are assigned again beside them (`ConflictError`). If
the store has lost the file, this machine sends its own again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.splits import split
from patchline.pipeline.data.splits.class_coverage import SPLITS
from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.shared_files import SharedFile

_LOCK_SECONDS = 600
"""How long to wait for another run to assign its images."""


class SplitMemory:
    """The remembered assignments of one way of splitting, while its lock is held.

    Args:
        file: the file that holds them.
        scope: a prefix for the names of groups, such as the name of the data.
        shared: the file in the store of a shared workspace.
    """

    def __init__(self, file: Path, scope: str = "", shared: SharedFile | None = None) -> None:
        self.file, self._scope, self._shared = file, scope, shared
        self.is_new = not file.exists()
        self.table = pd.DataFrame(columns=split.REMEMBERED, dtype=object)
        if not self.is_new:
            self.table = _read(file)

    def take_over(self, manifest: pd.DataFrame) -> None:
        """Add the splits of an earlier run for images without an entry, without saving."""
        self._add(split.collect_assignments(manifest[manifest["split"].isin(SPLITS)], self._scope))

    def remember(self, rows: pd.DataFrame) -> bool:
        """Save the splits of images beside those already remembered; return if any was new.

        Raises:
            ConflictError: if another machine has saved others meanwhile; nothing is saved then.
        """
        is_lost = self._shared is not None and self._shared.is_missing
        if not self.is_new and not is_lost and split.all_known(rows, self.table, self._scope):
            return False
        before = 0 if self.is_new else len(self.table)
        self._add(split.collect_assignments(rows, self._scope))
        if len(self.table) > before or is_lost:
            with replace_file(self.file) as temporary:
                self.table.to_parquet(temporary, index=False)
                if self._shared is not None:
                    self._shared.replace(temporary)
        return len(self.table) > before

    def _add(self, table: pd.DataFrame) -> None:
        both = pd.concat([self.table, table], ignore_index=True)
        self.table = both[~both.duplicated(["kind", "key"])]


def file_of(workspace: Path, fractions: dict[str, float], seed: int) -> Path:
    """Return the file that remembers one way of splitting; see `open_memory`."""
    shares = "-".join(f"{name}-{share!r}" for name, share in sorted(fractions.items()))
    return workspace / "splits" / f"rule-{split.RULE}-seed-{seed}-{shares}.parquet"


@contextmanager
def open_memory(
    workspace: Path,
    fractions: dict[str, float],
    seed: int,
    earlier: Callable[[], list[pd.DataFrame]],
    scope: str = "",
) -> Iterator[SplitMemory]:
    """Yield the memory of one way of splitting, under an exclusive lock.

    Args:
        workspace: the folder `.patchline`.
        fractions: shares of the splits to split off, by name.
        seed: the split seed.
        earlier: returns manifests of earlier runs for a new memory, the most trusted first.
        scope: a prefix for the names of groups, such as the name of the data.

    Raises:
        DataError: if the file is damaged.
        StorageError: if it cannot be written, or another process holds the lock for too long.
    """
    file = file_of(workspace, fractions, seed)
    files = chosen.find_shared_files()
    shared = SharedFile(files, f"splits/{file.name}") if files else None
    with try_lock(file.with_suffix(".lock"), _LOCK_SECONDS) as locked:
        if not locked:
            raise StorageError(
                f"Another process has held {file.with_suffix('.lock')} for {_LOCK_SECONDS // 60} "
                "minutes. Stop the run that holds it, and try again."
            )
        if shared is not None:
            shared.fetch(file)
        memory = SplitMemory(file, scope, shared)
        if memory.is_new:
            for manifest in earlier():
                memory.take_over(manifest)
        yield memory


def _read(file: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(file, columns=split.REMEMBERED)
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors derive from these
        raise DataError(
            f"{file}, which records the split of each image, is damaged. Restore it, or delete it; "
            "images may then move to another split."
        ) from error
