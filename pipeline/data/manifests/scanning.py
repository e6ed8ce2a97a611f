"""Scan what a data source has found: open every file once, and describe it in a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pandas as pd

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests.describing import OnImage, Row, empty_row
from patchline.pipeline.data.manifests.describing_processes import Files, KeptImageArray, rows_of
from patchline.pipeline.data.manifests.label_task import is_labelled
from patchline.pipeline.data.manifests.manifest import COLUMNS, Progress
from patchline.pipeline.data.manifests.scan_memory import DESCRIBED, Facts, ScanMemory
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.plugin_api import ImageListing, ListedImage


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
        listing: what the source has found.
        on_progress: called after each file.
        labelled: whether an image without a class is foreign.
        on_image: called for each decoded image, in the thread that has decoded it.
        memory: what is known from earlier scans; unchanged files are opened only for `on_image`.
        facts: what the memory has found about the files, in the order of their paths, if it has.
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
        manifest = pd.concat([manifest, _left_out(listing)], ignore_index=True)
        manifest = manifest.sort_values("path", kind="stable", ignore_index=True)
    return _with_columns(manifest[COLUMNS], listing)


def _tabulate_images(images: Sequence[ListedImage]) -> pd.DataFrame:
    """Return what the source says of each image."""
    texts = [
        listed.label if listed.labels is None else label_sets.encoded(map(printable, listed.labels))
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


def _left_out(listing: ImageListing) -> pd.DataFrame:
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
