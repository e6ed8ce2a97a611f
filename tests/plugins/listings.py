"""What the data sources list, and the files that they list it from.

Paths that are relative begin in the folder of the test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import check_source, ingest
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import DataError
from patchline.plugin_api import ImageListing
from tests.conftest import write_photos


def listed(data: Path | str, **settings: Any) -> ImageListing:
    """Return what a run with the argument DATA would list; it has labels unless told otherwise."""
    data, labelled = Path.cwd() / data, settings.pop("labelled", True)
    config = build_config(str(data), preset_name=None, file=None, flags={"data": settings})
    return listing_of(config, data.parent / ".work", labelled=labelled)


def refused(words: str, data: Path | str, **settings: Any) -> None:
    """Check that the data is refused in a sentence with these words."""
    with pytest.raises(DataError, match=words):
        listed(data, **settings)


def labels_of(listing: ImageListing) -> dict[str, tuple[str, ...] | str]:
    """Return the labels of each image: a set, or the text of data of one label."""
    return {
        image.path: image.label if image.labels is None else image.labels
        for image in listing.images
    }


def ingested(data: Path | str, work: Path | str, **settings: Any) -> IngestedData:
    """Return what the ingestion says about the argument DATA."""
    flags = {"data": settings}
    config = build_config(str(Path.cwd() / data), preset_name=None, file=None, flags=flags)
    work = Path.cwd() / work
    check_source(config, work)
    return ingest(config, work)


def touched(folder: Path | str, *names: str) -> Path:
    """Write files that a source need not open, and empty folders for names that end in a slash."""
    root = Path.cwd() / folder
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name).mkdir()
        else:
            (root / name).write_bytes(b"not opened")
    return root


def table(name: Path | str, text: str) -> Path:
    """Write a table, and the images that it names by a number."""
    file = Path.cwd() / name
    touched(file.parent, *re.findall(r"\b\d+\.jpg", text))
    file.write_text(text, encoding="utf-8")
    return file


def two_classes(images: int) -> Path:
    """Write photos, as many of each of two classes, into the folder `photos`."""
    return write_photos(Path.cwd() / "photos", 2, images)
