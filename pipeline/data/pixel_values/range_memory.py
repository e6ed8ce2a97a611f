"""The value ranges that the last run on a folder or an archive has found, to say that they change.

A range that is found follows the data. When it changes as data grows, the same file looks different
to the new model than to the earlier one; each package keeps the range of its own training.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pipeline.data.pixel_values.pixel_mapping import kind_words, number
from pipeline.data.scan_memory import digest_of_root
from pipeline.files.atomic_files import storage_errors, write_text
from pipeline.plugin_api import PixelValues
from pipeline.workspace import make_folder

_FORMAT = "value ranges 1"


def notes_on_change(
    values: PixelValues, root: Path, workspace: Path, *, remember: bool
) -> list[str]:
    """Say which ranges differ from those of the last run, and remember these.

    Args:
        values: of this run.
        root: the folder or archive of the images.
        workspace: the folder `.patchline`.
        remember: whether later runs are to know the ranges.
    """
    if not values.ranges:
        return []
    file = workspace / "value_ranges" / f"{digest_of_root(root, _FORMAT)}.json"
    try:
        earlier = PixelValues.model_validate_json(file.read_bytes()).ranges
    except (OSError, ValidationError):  # there is none, or it is damaged
        earlier = ()
    before = {each.kind: (each.low, each.high) for each in earlier}
    notes = [
        f"the range of {kind_words(each.kind)} values was {number(before[each.kind][0])} to "
        f"{number(before[each.kind][1])} in the last run on these images; to keep it, set "
        f"--data.value-range {before[each.kind][0]:g} {before[each.kind][1]:g}"
        for each in values.ranges
        if before.get(each.kind, (each.low, each.high)) != (each.low, each.high)
    ]
    if remember and earlier != values.ranges:
        with storage_errors(file):
            make_folder(file.parent)
            write_text(file, values.model_dump_json())
    return notes
