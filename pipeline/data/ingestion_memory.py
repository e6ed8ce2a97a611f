"""What an ingestion has found, for the next one of the same files with the same settings.

Nothing is opened and nothing is split again if the source lists the same files, none of them has
changed (see `scanning`), and the manifest and the remembered splits are still there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.describing import describe
from patchline.pipeline.data.manifests.scanning import FORMAT as SCAN_FORMAT
from patchline.pipeline.data.manifests.scanning import Facts, ScanMemory, digest_of_root
from patchline.pipeline.data.manifests.source_listing import is_labelled, uses_labels
from patchline.pipeline.data.near_duplicates import search_memory
from patchline.pipeline.data.splits import split
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    describe_unmeasured_symmetries,
    find_mirroring_settings,
)
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.plugin_api import ImageListing

FORMAT = 5
"""Increase it when an ingestion finds something else in the same files."""


class IngestionRecord(FrozenModel):
    """The result of an ingestion, and what it depends on beside the settings."""

    files: str
    """Digest of what the source lists and of the facts about its files."""
    manifest: str
    """SHA-256 of the manifest."""
    splits: str
    """SHA-256 of the file that remembers the splits; empty if Patchline has made none."""
    splits_file: str
    """The name of that file."""
    damaged: dict[str, str]
    """Why each damaged file could not be read, by its path."""
    data: IngestedData


class IngestionMemory:
    """The result of the last ingestion of a folder or an archive with the same settings.

    Args:
        config: the settings of the data.
        listing: what the source lists.
        facts: size, times and inode of each listed file (N, 4), in the order of their paths.
        scan: looks at the files; nothing is recalled if it is to open all of them.
    """

    def __init__(
        self, config: RunConfig, listing: ImageListing, facts: Facts, scan: ScanMemory
    ) -> None:
        version = f"{FORMAT} {SCAN_FORMAT} {split.RULE} {_settings(config)}"
        digest = digest_of_root(listing.root, version)
        self._workspace = scan.workspace.resolve()
        self.file = self._workspace / "ingestions" / f"{digest}.json"
        self._listing, self._labelled = listing, uses_labels(config)
        self._fresh, self._settled = scan.fresh, bool(scan.settled(facts).all())
        self._files = hashlib.sha256(_serialize_listing(listing) + facts.tobytes()).hexdigest()

    def recall(self) -> IngestedData | None:
        """Return what was found, if nothing that it depends on has changed."""
        if self._fresh or not self._settled:
            return None
        record = IngestionRecord.from_file_or_none(self.file)
        with contextlib.suppress(OSError):  # a file is gone, so the images are read again
            if record and record.files == self._files and self._is_there(record):
                return record.data if self._damaged(set(record.damaged)) == record.damaged else None
        return None

    def keep(self, data: IngestedData, splits: Path | None) -> None:
        """Remember a result, unless a file was changed too recently to tell later changes.

        Args:
            data: the result.
            splits: the file that remembers the splits, if Patchline has made some.
        """
        if not self._settled:
            return
        rows = manifests.load(data.manifest_file)
        damaged = rows[rows["status"] == "damaged"]
        opened = {printable(image.path) for image in self._listing.images}
        reasons = dict(zip(damaged["path"], damaged["reason"], strict=True))
        record = IngestionRecord(
            files=self._files,
            manifest=digest_of(data.manifest_file).sha256,
            splits=digest_of(splits).sha256 if splits else "",
            splits_file=splits.name if splits else "",
            damaged={path: reason for path, reason in reasons.items() if path in opened},
            data=data,
        )
        record.to_file(self.file)

    def _is_there(self, record: IngestionRecord) -> bool:
        """Return whether this workspace still holds the manifest and the splits."""
        manifest, splits = (
            record.data.manifest_file,
            self._workspace / "splits" / record.splits_file,
        )
        return (
            manifest.resolve().parent == self._workspace / "manifests"
            and digest_of(manifest).sha256 == record.manifest
            and (not record.splits or digest_of(splits).sha256 == record.splits)
            and Path(record.data.example_image).is_file()
        )

    def _damaged(self, paths: set[str]) -> dict[str, str]:
        """Open damaged files again: permissions, memory or a disk may be better now."""
        images = self._listing.images if paths else []
        again = [image for image in images if printable(image.path) in paths]
        rows = [
            describe(
                self._listing.root, image, is_labelled=is_labelled(image) or not self._labelled
            )
            for image in again
        ]
        return {row["path"]: row["reason"] for row in rows if row["status"] == "damaged"}


def _settings(config: RunConfig) -> str:
    """Return the settings that a result depends on, as JSON."""
    data = config.data.model_dump(mode="json", exclude={"path", "unlabelled"})
    if config.data.group_near_duplicates:
        data["search"] = search_memory.version()
    slices, mirroring = list(config.evaluation.slices), find_mirroring_settings(config)
    assumed = describe_unmeasured_symmetries(config)
    record = [data, config.objective.name, slices, mirroring, assumed]
    return json.dumps(record, sort_keys=True)


def _serialize_listing(listing: ImageListing) -> bytes:
    """Return everything that a source lists."""
    rest = [listing.name, listing.mirror_symmetric, listing.notes, listing.empty_classes]
    parts = [*rest, listing.images, listing.left_out, dict(listing.columns)]
    return json.dumps(parts).encode()
