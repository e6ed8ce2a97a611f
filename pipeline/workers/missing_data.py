"""The error of a worker whose machine does not have the data of its job."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.placeholders import FOLDER
from patchline.pipeline.files.workspace_folder import WORKSPACE


def missing_data(place: Path) -> DataError:
    """Return the error for images that are not on a node.

    Args:
        place: the folder, archive or file that is not there. In the folder `sources` of a
            workspace, it is what the machine of the run has made of the data: an index of shards,
            an unpacked tar, or the encoding of an archive's names.
    """
    sources = WORKSPACE / FOLDER.parts[0]
    tops = [each for each in place.parents if each.parts[-2:] == sources.parts]
    if tops and not place.is_relative_to(tops[0].parent / FOLDER):
        return DataError(
            "A node of the cluster does not have the images: of WebDataset shards, a compressed "
            "tar, and an archive with data.name_encoding, only the machine of the run knows where "
            "each image is. Unpack the data into a folder that all nodes have at the same path, "
            "let all nodes mount the working directory (launcher.shared_folder), or set "
            "launcher.name to local."
        )
    return DataError(
        f"A node of the cluster has no {place}, where the images are. Mount it there at the same "
        "path, or set launcher.name to local."
    )
