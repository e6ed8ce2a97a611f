"""What the data sources list, and the files that they list it from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import check_source, ingest
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.plugin_api import ImageListing


def listed(data: Path, **settings: Any) -> ImageListing:
    """Return what a run with the argument DATA would list; it has labels unless told otherwise."""
    labelled = settings.pop("labelled", True)
    config = requested(str(data), preset_name=None, file=None, flags={"data": settings})
    return listing_of(config, data.parent / ".work", labelled=labelled)


def labels_of(listing: ImageListing) -> dict[str, tuple[str, ...] | str]:
    """Return the labels of each image: a set, or the text of data of one label."""
    return {
        image.path: image.label if image.labels is None else image.labels
        for image in listing.images
    }


def ingested(data: Path, work: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about the argument DATA."""
    config = requested(str(data), preset_name=None, file=None, flags={"data": settings})
    check_source(config, work)
    return ingest(config, work)


def touched(root: Path, *names: str) -> Path:
    """Write files that a source need not open, and empty folders for names that end in a slash."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name).mkdir()
        else:
            (root / name).write_bytes(b"not opened")
    return root


def table(file: Path, text: str) -> Path:
    """Write a table, and the images that it names by a number."""
    touched(file.parent, *re.findall(r"\b\d+\.jpg", text))
    file.write_text(text, encoding="utf-8")
    return file
