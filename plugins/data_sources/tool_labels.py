"""The images and label sets of a labelling tool's export as a listing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patchline.plugin_api import (
    MULTI_LABEL,
    DataError,
    ImageListing,
    LeftOutFile,
    ListedImage,
    SourceContext,
    Split,
    is_several,
    stem_of,
    valid_name,
)
from patchline.plugins.data_sources.named_images import ImagePlaces
from patchline.plugins.data_sources.table_formats import first_few, format_cell, join_names

_MOST_BYTES = 1 << 30
_COMMON_NAMES = frozenset({
    "annotations", "_annotations.coco", "labels", "instances", "instances_default",
    "result", "export", "project",
})  # fmt: skip
BOXES = "--data.boxes labels to take the classes of an image's regions as its labels, or ignore"


class ToolImage(NamedTuple):
    """An image of an export."""

    name: str
    """The name of the image in the export."""
    labels: tuple[str, ...]
    split: Split | None = None
    unknown: str = ""
    """Why its labels are not known, if they are not."""


class MalformedError(DataError):
    """A part of an export is not what the format says."""

    def __init__(self, what: str, file: Path, reason: str) -> None:
        super().__init__(f"{what} in {file} {reason}. Export it again.")
        self.reason = f"{what[:1].lower()}{what[1:]} {reason}"


_NO_LABEL = "has no label"
MOST_MALFORMED = 0.1
"""Of the annotations; with more, an export is refused as a whole."""


def json_of(file: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise DataError(
                f"{file} has more than {_MOST_BYTES >> 30} GiB. Split it, or write the labels to a "
                "Parquet table."
            )
        return json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = format_cell(" ".join(str(error).split()))
        raise DataError(f"{file} is not valid JSON ({reason}). Export it again.") from error


def tool_listing(
    file: Path,
    images: Sequence[ToolImage],
    places: ImagePlaces,
    context: SourceContext,
    *,
    how: str,
    left_out: Sequence[LeftOutFile] = (),
    classes: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> ImageListing:
    """Return the listing of an export.

    Args:
        file: the export.
        images: the images of the export, with their labels.
        places: the file of each image.
        context: the context that the source was built with.
        how: a clause that says what the labels are, for messages.
        left_out: entries that say nothing about their image; another entry may.
        classes: all names of labels, with those that no image has.
        notes: what else a person should know.

    Raises:
        DataError: if no image is left.
    """
    united: dict[str, ListedImage] = {}
    missing: dict[str, LeftOutFile] = {}
    for image, path in zip(images, places.paths, strict=True):
        if image.unknown:
            missing[path or image.name] = LeftOutFile(path or image.name, image.unknown)
            continue
        if path is None:
            name = image.name or "an image without a name"
            missing[name] = LeftOutFile(name, "there is no such file")
            continue
        labels = tuple(sorted({label.strip() for label in image.labels} - {""}))
        new = ListedImage(path, "", image.split, None, labels if context.needs_labels else ())
        first = united.setdefault(path, new)
        if first != new:
            missing[path] = LeftOutFile(path, _contradiction(first, new))
    kept = [image for path, image in united.items() if path not in missing]
    several = is_several([image.labels or () for image in kept], context.task)
    if context.needs_labels and not several:
        missing |= {each.path: _exception(each) for each in kept if len(each.labels or ()) != 1}
        kept = [image for image in kept if image.path not in missing]
    if not kept:
        one = next(iter(missing.values()))
        raise DataError(
            f"{file} lists no image that can be used, such as {format_cell(one.path)}: "
            f"{one.reason}. Correct the export, or set --data.root to the folder of the images."
        )
    said = _describe_reading(file.name, kept, how, several=several) if context.needs_labels else []
    if not (context.needs_labels and several):
        kept = [each._replace(label="".join(each.labels or ()), labels=None) for each in kept]
    there = {*united, *missing, *(image.name for image in images)}
    used = {label for image in kept for label in (image.labels or (image.label,))}
    return ImageListing(
        name=_name(file),
        root=places.root,
        images=kept,
        left_out=[*missing.values(), *(each for each in left_out if each.path not in there)],
        empty_classes=sorted(set(classes) - used) if context.needs_labels else [],
        notes=[*said, *places.notes, *notes],
    )


def _contradiction(one: ListedImage, other: ListedImage) -> str:
    """Return how two entries of an image differ."""
    if one.split != other.split:
        return f"has two splits in the export, {one.split or 'none'} and {other.split or 'none'}"
    first, second = sorted((one.labels or (), other.labels or ()))
    return f"has two labels in the export, {join_names(first)} and {join_names(second)}"


def _exception(image: ListedImage) -> LeftOutFile:
    """Return why an image is not used where nearly all others have one label."""
    if not image.labels:
        return LeftOutFile(image.path, _NO_LABEL, "foreign")
    return LeftOutFile(image.path, f"has several labels, {join_names(image.labels)}")


def _describe_reading(
    file: str, images: Sequence[ListedImage], how: str, *, several: bool
) -> list[str]:
    """Return how the labels were understood, with an example."""
    first = max(images[:1000], key=lambda image: min(len(image.labels or ()), 3))
    labels = first.labels or ()
    if not several:
        example = f"{format_cell(first.path)} is {join_names(labels)}"
        flag = f"--data.task {MULTI_LABEL} learns several labels"
        return [f"{file}: {how}, one for each image that is used: {example} ({flag})"]
    return [f"{file}: {how}: {format_cell(first.path)} has {join_names(labels)}"]


def _name(file: Path) -> str:
    stem = file.name if file.is_dir() else stem_of(file)
    if stem.lower() not in _COMMON_NAMES or file.is_dir():
        return valid_name(stem)
    parent = file.parent
    return valid_name(parent.parent.name if parent.name == "annotations" else parent.name)


def check_type(value: Any, kind: type, what: str, file: Path) -> Any:
    """Return a value of an export that has to be of a type.

    Raises:
        MalformedError: if it is not.
    """
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        short = format_cell(json.dumps(value, default=str)[:60])
        words: Mapping[type, str] = {dict: "an object", list: "a list", str: "a text"}
        raise MalformedError(what, file, f"is {short}, but has to be {words[kind]}")
    return value


def check_malformed(file: Path, reasons: Sequence[str], total: int, what: str) -> None:
    """Refuse an export of which more than a few parts cannot be read.

    Args:
        file: the export, for messages.
        reasons: the reason for each part that cannot be read; it names the part.
        total: number of all parts.
        what: the name of the parts, such as `annotations`.

    Raises:
        DataError: if they are more than a tenth.
    """
    if len(reasons) > MOST_MALFORMED * total:
        some = first_few(reasons, joint="; ")
        raise DataError(
            f"{len(reasons):,} of {total:,} {what} in {file} cannot be used: {some}. Export it "
            "again."
        )
