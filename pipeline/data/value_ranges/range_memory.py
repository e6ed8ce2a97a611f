"""The value ranges that the last run on a folder or an archive has found, to say that they change.

A range that is found follows the data. When it changes as data grows, the same file looks different
to the new model than to the earlier one; each package keeps the range of its own training.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from patchline.pipeline.data.manifests.scan_memory import digest_of_root
from patchline.pipeline.data.pixel_values.pixel_mapping import kind_words, number
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugin_api import PixelValues, ValueRange

_FORMAT = "value ranges 1"


def notes_on_change(values: PixelValues, root: Path, workspace: Path) -> list[str]:
    """Say which ranges differ from those of the last run.

    Args:
        values: of this run.
        root: the folder or archive of the images.
        workspace: the folder `.patchline`.
    """
    earlier = _remembered(_file(root, workspace)) if values.ranges else ()
    before = {each.kind: (each.low, each.high) for each in earlier}
    return [
        f"the range of {kind_words(each.kind)} values was {number(before[each.kind][0])} to "
        f"{number(before[each.kind][1])} in the last run on these images; to keep it, set "
        f"--data.value-range {before[each.kind][0]:g} {before[each.kind][1]:g}"
        for each in values.ranges
        if before.get(each.kind, (each.low, each.high)) != (each.low, each.high)
    ]


def remember(values: PixelValues, root: Path, workspace: Path) -> None:
    """Remember the ranges of a run that trains on these images, for the next one."""
    file = _file(root, workspace)
    if values.ranges and _remembered(file) != values.ranges:
        with storage_errors(file):
            make_folder(file.parent)
            write_text(file, values.model_dump_json())


def _file(root: Path, workspace: Path) -> Path:
    return workspace / "value_ranges" / f"{digest_of_root(root, _FORMAT)}.json"


def _remembered(file: Path) -> tuple[ValueRange, ...]:
    try:
        return PixelValues.model_validate_json(file.read_bytes()).ranges
    except (OSError, ValidationError):  # there is none, or it is damaged
        return ()
