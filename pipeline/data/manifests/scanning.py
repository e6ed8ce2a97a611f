"""Scan what a data source lists: open every file once, except those that an earlier scan has read.

A file counts as unchanged if its size, its inode, and the times of its last modification and of its
last change of status are those of the earlier scan; a program cannot set the last one. A file that
was changed up to two seconds before that scan is not remembered, because a file system may give a
later change the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests.describing import (
    Files,
    KeptImageArray,
    OnImage,
    Row,
    empty_row,
)
from patchline.pipeline.data.manifests.describing_worker import rows_of
from patchline.pipeline.data.manifests.manifest import COLUMNS, Progress
from patchline.pipeline.data.manifests.source_listing import is_labelled
from patchline.pipeline.data.reading.decoder_version import decoder_version
from patchline.pipeline.data.reading.image_root import archive_of
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.files.archive_members import MemberError
from patchline.pipeline.workspace.files.archives import (
    INDEX_SUFFIX,
    ShardedArchive,
    read_named_encoding,
)
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.pipeline.workspace.workspace import workspace_of
from patchline.plugin_api import ImageListing, ListedImage

FORMAT = 5
"""Increase it when the rows of a manifest say something else about a file."""
DESCRIBED = [
    *("sha256", "pixels", "width", "height", "mode", "values", "bytes", "status", "reason"),
]
_FACTS = ["stat_bytes", "stat_modified", "stat_changed", "stat_inode"]
_RECENT_NANOSECONDS = 2 * 10**9

Facts = np.ndarray[Any, np.dtype[np.int64]]
"""Size, times of modification and of status change in nanoseconds, and inode of each file (N, 4);
-1 if it cannot be looked at."""


class ScanMemory:
    """The rows of usable images in the last scan of a folder or an archive.

    Args:
        root: the folder or archive.
        workspace: the folder `.patchline`.
        fresh: forget what is there.
    """

    def __init__(self, root: Path, workspace: Path, *, fresh: bool = False) -> None:
        self.file = workspace / "scans" / f"{digest_of_root(root, FORMAT)}.parquet"
        self.workspace = workspace
        self._root = root
        self.fresh = fresh
        self._began = time.time_ns()

    def facts(self, paths: list[str]) -> Facts:
        """Look at files without opening them; of objects, the ETag is the same on all machines."""
        e_tags = remote_data.e_tags(self._root)
        if e_tags is not None:
            return _facts_of_objects(e_tags, paths, is_folder=self._root.is_dir())
        if self._root.is_dir():
            base = os.fspath(self._root)
            return np.array([_facts(f"{base}/{path}") for path in paths], np.int64).reshape(-1, 4)
        archive = archive_of(self._root)
        if archive is None:
            return np.full((len(paths), 4), -1, np.int64)
        if archive.suffix == INDEX_SUFFIX:  # it stays while its shards change
            return _facts_of_shards(archive, paths)
        archive, _ = read_named_encoding(archive)
        return np.tile(np.array(_facts(os.fspath(archive)), np.int64), (len(paths), 1))

    def unchanged_rows(self, paths: list[str], facts: Facts) -> pd.DataFrame:
        """Return the columns `DESCRIBED` of the files that are unchanged; the index is theirs.

        Args:
            paths: the paths of the files, relative to the root.
            facts: the facts of each path (N, 4).
        """
        empty = pd.DataFrame(columns=DESCRIBED)
        if not self.fresh:
            workspace_of(self.file).fetch_file(self.file)
        if self.fresh or not self.file.is_file():
            return empty
        try:
            table = pd.read_parquet(self.file).set_index("path")
            if table.empty:
                return empty
            places = table.index.get_indexer(pd.Index(paths))
            earlier = table[_FACTS].to_numpy(np.int64)[places]
            same = (places >= 0) & (facts >= 0).all(axis=1) & (earlier == facts).all(axis=1)
            rows: pd.DataFrame = table[DESCRIBED].iloc[places[same]]
        except (OSError, ValueError, KeyError, pd.errors.InvalidIndexError):
            return empty  # it is damaged, so the files are opened again
        rows.index = pd.Index(np.flatnonzero(same))
        return rows

    def settled(self, facts: Facts) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for which files a later change would be noticed."""
        recent = facts[:, 1:3].max(axis=1) >= self._began - _RECENT_NANOSECONDS
        is_settled: np.ndarray[Any, np.dtype[np.bool_]] = (facts >= 0).all(axis=1) & ~recent
        return is_settled

    def keep(self, manifest: pd.DataFrame, facts: Facts) -> None:
        """Remember the usable images of a scan.

        Args:
            manifest: its rows.
            facts: the facts of each row (N, 4), from before its file was described.
        """
        kept_rows = self.settled(facts) & (manifest["status"] == "ok").to_numpy()
        table = manifest.loc[kept_rows, ["path", *DESCRIBED]]
        for place, name in enumerate(_FACTS):
            table[name] = facts[kept_rows, place]
        with replace_file(self.file) as temporary:
            table.to_parquet(temporary, index=False)
        if remote_data.is_downloaded(self._root):  # of other files, only this machine knows
            workspace_of(self.file).send_file(self.file)


def digest_of_root(root: Path, version: int | str) -> str:
    """Return 32 hexadecimal digits over a folder or archive, the decoder, and a version.

    They name a file that remembers something about the images there.
    """
    key = json.dumps([version, *decoder_version(), remote_data.format_path(str(root))])
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _facts_of_objects(e_tags: dict[str, str], paths: list[str], *, is_folder: bool) -> Facts:
    """Return a number for the ETag of each object, or for that of the archive they are in."""
    unknown = (-1, -1, -1, -1)
    digests = {key: hashlib.sha256(e_tag.encode()).digest() for key, e_tag in e_tags.items()}
    facts = {key: (0, 0, 0, int.from_bytes(each[:8]) >> 1) for key, each in digests.items()}
    if is_folder:
        of_paths = [facts.get(path, unknown) for path in paths]
    else:
        of_paths = [next(iter(facts.values()), unknown)] * len(paths)
    return np.array(of_paths, np.int64).reshape(-1, 4)


def _facts_of_shards(index: Path, paths: list[str]) -> Facts:
    """Look at the shard of each file."""
    archive = ShardedArchive(index)
    shards = [_shard_of(archive, path) for path in paths]
    facts = {shard: _facts(shard) for shard in set(shards)}
    return np.array([facts[shard] for shard in shards], np.int64).reshape(-1, 4)


def _shard_of(archive: ShardedArchive, path: str) -> str:
    """Return the shard of a file; empty if there is none, which its row will say."""
    try:
        return os.fspath(archive.shard_of(path))
    except MemberError:
        return ""


def _facts(file: str) -> tuple[int, int, int, int]:
    try:
        status = os.stat(file)  # noqa: PTH116 - a Path for each of a million files takes its time
    except (OSError, ValueError):
        return -1, -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & (2**63 - 1)


class OpenDraft(Protocol):
    """Keeps the images of one scan while they are decoded."""

    images: KeptImageArray

    def finish(self, rows: Sequence[Row]) -> None:
        """Keep the images of these rows, which are all of the scan, for the prepared store."""


class Draft(Protocol):
    """Keeps the images that a scan decodes."""

    def opened(self, files: Files) -> AbstractContextManager[OpenDraft | None]:
        """Begin a scan of these files; None if their images cannot be kept."""


def scan(
    listing: ImageListing,
    on_progress: Progress | None = None,
    *,
    labelled: bool = True,
    on_image: OnImage | None = None,
    memory: ScanMemory | None = None,
    facts: Facts | None = None,
    draft: Draft | None = None,
) -> pd.DataFrame:
    """Open every listed file once and describe it, sorted by path.

    Args:
        listing: the files that the source has found.
        on_progress: called after each file.
        labelled: whether an image without a class is foreign.
        on_image: called for each decoded image, in the thread that has decoded it.
        memory: what is known from earlier scans; unchanged files are opened only for `on_image`.
        facts: the facts of the files (N, 4), in the order of their paths, if the memory has found
            them already.
        draft: keeps the images that are decoded, unless an earlier scan has seen the folder and
            they are decoded again for `on_image` alone.
    """
    images = sorted(listing.images, key=lambda listed: listed.path)
    has_labels = [is_labelled(listed) or not labelled for listed in images]
    paths = [listed.path for listed in images]
    unchanged = pd.DataFrame(columns=DESCRIBED)
    if memory and facts is None:
        facts = memory.facts(paths)
    if memory and facts is not None and on_image is None:
        unchanged = memory.unchanged_rows(paths, facts)
        unchanged = unchanged[[has_labels[place] for place in unchanged.index]]
    recalled = set(unchanged.index)
    others = [place for place in range(len(images)) if place not in recalled]
    rows: list[Row] = []
    files = [(images[each], has_labels[each]) for each in others]
    if not files or (on_image and memory and memory.file.exists()):
        draft = None
    with draft.opened(files) if draft else nullcontext() as opened:
        for row in rows_of(listing.root, files, on_image, kept=opened.images if opened else None):
            rows.append(row)
            if on_progress:
                on_progress(len(recalled) + len(rows), len(images))
        if opened:
            opened.finish(rows)
    manifest = _tabulate_images(images).join(_together(unchanged, rows, others))
    if memory and facts is not None and any(row["status"] == "ok" for row in rows):
        memory.keep(manifest, facts)
    if listing.left_out:
        manifest = pd.concat([manifest, _list_left_out(listing)], ignore_index=True)
        manifest = manifest.sort_values("path", kind="stable", ignore_index=True)
    return _with_columns(manifest[COLUMNS], listing)


def _tabulate_images(images: Sequence[ListedImage]) -> pd.DataFrame:
    """Return what the source says of each image."""
    texts = [
        listed.label
        if listed.labels is None
        else label_sets.encode_labels(map(printable, listed.labels))
        for listed in images
    ]
    labels = {label: printable(label) for label in set(texts)}
    groups = {group: printable(group or "") for group in {listed.group for listed in images}}
    return pd.DataFrame(
        {
            "path": [printable(listed.path) for listed in images],
            "label": [labels[text] for text in texts],
            "split": [listed.split or "" for listed in images],
            "group": [groups[listed.group] for listed in images],
        }
    )


def _together(unchanged: pd.DataFrame, rows: Sequence[Row], places: Sequence[int]) -> pd.DataFrame:
    """Return the rows that were known and those that were made now, by their places."""
    made = pd.DataFrame(list(rows), columns=DESCRIBED)
    made.index = pd.Index(places)
    tables = [each for each in (unchanged, made) if len(each)]
    together: pd.DataFrame = pd.concat(tables).sort_index() if tables else made
    return together


def _list_left_out(listing: ImageListing) -> pd.DataFrame:
    """Return the rows of the files that the source does not use."""
    rows = []
    for left_out in listing.left_out:
        row = empty_row(ListedImage(left_out.path, ""))
        row["status"], row["reason"] = left_out.status, left_out.reason
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _with_columns(manifest: pd.DataFrame, listing: ImageListing) -> pd.DataFrame:
    """Add the source's own columns; they are empty for files that are left out."""
    paths = [printable(listed.path) for listed in listing.images]
    for name, values in listing.columns.items():
        value_of = dict(zip(paths, map(printable, values), strict=True))
        manifest[f"{OWN_COLUMN}{printable(name)}"] = [
            value_of.get(path, "") for path in manifest["path"]
        ]
    return manifest
