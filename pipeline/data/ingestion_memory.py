"""What an ingestion has found, for the next one of the same files with the same settings.

Nothing is opened and nothing is split again if the source lists the same files, none of them has
changed (see `scan_memory`), and the manifest and the remembered splits are still there.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from pipeline.config import RunConfig
from pipeline.data import split
from pipeline.data.ingested_data import IngestedData
from pipeline.data.near_duplicates import search_memory
from pipeline.data.scan_memory import FORMAT as SCAN_FORMAT
from pipeline.data.scan_memory import Facts, ScanMemory, digest_of_root
from pipeline.files.atomic_files import storage_errors, write_text
from pipeline.files.file_digest import digest_of
from pipeline.plugin_api import ImageListing
from pipeline.section import Section
from pipeline.workspace import make_folder

FORMAT = 1
"""Increase it when an ingestion finds something else in the same files."""


class Kept(Section):
    """The result of an ingestion, and what it depends on beside the settings."""

    files: str
    """Digest of what the source lists and of the facts about its files."""
    manifest: str
    """SHA-256 of the manifest."""
    splits: Path | None
    """The file that remembers the splits, if Patchline has made some."""
    data: IngestedData


class IngestionMemory:
    """The result of the last ingestion of a folder or an archive with the same settings.

    Args:
        config: the settings of the data.
        listing: what the source lists.
        facts: of each listed file, in the order of their paths (N, 4).
        scan: looks at the files; nothing is recalled if it is to open all of them.
    """

    def __init__(
        self, config: RunConfig, listing: ImageListing, facts: Facts, scan: ScanMemory
    ) -> None:
        version = f"{FORMAT} {SCAN_FORMAT} {split.RULE} {_settings(config)}"
        digest = digest_of_root(listing.root, version)
        self.file = scan.workspace / "ingestions" / f"{digest}.json"
        self._fresh, self._settled = scan.fresh, bool(scan.settled(facts).all())
        self._files = hashlib.sha256(_listed(listing) + facts.tobytes()).hexdigest()

    def recall(self) -> IngestedData | None:
        """Return what was found, if nothing that it depends on has changed."""
        if self._fresh or not self._settled or not self.file.is_file():
            return None
        try:
            kept = Kept.model_validate_json(self.file.read_bytes())
            there = kept.files == self._files and (kept.splits is None or kept.splits.is_file())
            if there and digest_of(kept.data.manifest_file).sha256 == kept.manifest:
                return kept.data if Path(kept.data.example_image).is_file() else None
        except (OSError, ValidationError):
            return None  # a file is damaged or gone, so the images are read again
        return None

    def keep(self, data: IngestedData, splits: Path | None) -> None:
        """Remember a result, unless a file was changed too recently to tell later changes.

        Args:
            data: the result.
            splits: the file that remembers the splits, if Patchline has made some.
        """
        if not self._settled:
            return
        digest = digest_of(data.manifest_file).sha256
        kept = Kept(files=self._files, manifest=digest, splits=splits, data=data)
        with storage_errors(self.file):
            make_folder(self.file.parent)
        write_text(self.file, kept.model_dump_json())


def _settings(config: RunConfig) -> str:
    """Return the settings that a result depends on, as JSON."""
    data = config.data.model_dump(mode="json", exclude={"path"})
    if config.data.group_near_duplicates:
        data["search"] = search_memory.version()
    kept = [data, config.objective.name, list(config.evaluation.slices)]
    return json.dumps(kept, sort_keys=True)


def _listed(listing: ImageListing) -> bytes:
    """Return everything that a source lists."""
    rest = [listing.name, listing.mirror_symmetric, listing.notes, listing.empty_classes]
    found = [*rest, listing.images, listing.left_out, dict(listing.columns)]
    return json.dumps(found).encode()
