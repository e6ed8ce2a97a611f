"""The labels of a listing: from a part of the paths, in one spelling, without skipped files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from patchline.pipeline.data.labels.class_names import groups_alike, most_frequent, normalized
from patchline.pipeline.data.labels.path_template import GROUP, LABEL, SPLIT, PathTemplate
from patchline.pipeline.data.labels.reading_rules import AUTO, LEAF, TOP, ReadingRules
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.archives import shard_names
from patchline.pipeline.workspace.files.data_names import split_named
from patchline.pipeline.workspace.files.ignored_files import IgnoredFiles
from patchline.plugin_api import ImageListing, LeftOutFile, ListedImage, Split

_NAMED = 3


def by_rules(listing: ImageListing, rules: ReadingRules, *, labelled: bool) -> ImageListing:
    """Return a listing without the files to skip, with the labels that the rules choose.

    Args:
        listing: of any source.
        rules: the settings of a run.
        labelled: whether its objective uses labels.

    Raises:
        DataError: if no path has the form that `data.label` states, or one names no split.
    """
    listing = _without_ignored(listing, IgnoredFiles(rules.ignore))
    if rules.label not in (AUTO, TOP, LEAF):
        listing = _by_template(listing, PathTemplate(rules.label))
    elif rules.label != AUTO:
        of_folders = _leaf if rules.label == LEAF else _top
        shards = shard_names(listing.root)
        images = [
            image._replace(label=of_folders(image, _folders(image.path, shards)), labels=None)
            for image in listing.images
        ]
        listing = replace(listing, images=images, empty_classes=[])
    if not labelled:
        return listing
    if rules.label != AUTO and not any(image.label for image in listing.images):
        raise DataError(
            f"data.label is {rules.label}, but no image of {listing.name} is in a folder. Use "
            "a pattern such as {label}_*.jpg if the file names tell the classes, or leave it out."
        )
    listing = _spelled(listing, {label: normalized(label) for label in _labels(listing)}, _UNICODE)
    return _merged(listing) if rules.merge_classes else listing


def _without_ignored(listing: ImageListing, ignored: IgnoredFiles) -> ImageListing:
    skipped = list(listing.ignored)
    paths = [image.path for image in listing.images]
    kept = ignored.remaining(paths, skipped.append)
    if len(kept) < len(paths):
        remaining = set(kept)
        listing = _only(listing, [path in remaining for path in paths])
    left_out = [each for each in listing.left_out if not ignored.skipped_part(each.path)]
    notes = [*listing.notes, *_note_on_ignored(skipped)]
    return replace(listing, left_out=left_out, notes=notes, ignored=skipped)


def _note_on_ignored(skipped: Sequence[str]) -> list[str]:
    if not skipped:
        return []
    folders = sum(path.endswith("/") for path in skipped)
    files = len(skipped) - folders
    parts = [
        counted(number, one) for number, one in ((folders, "folder"), (files, "file")) if number
    ]
    verb = "is" if len(skipped) == 1 else "are"
    return [f"{' and '.join(parts)} {verb} skipped by data.ignore: {_some(sorted(skipped))}"]


def _only(listing: ImageListing, kept: Sequence[bool]) -> ImageListing:
    """Return the listing of some of its images."""
    images = [image for image, keep in zip(listing.images, kept, strict=True) if keep]
    columns = {
        name: [value for value, keep in zip(values, kept, strict=True) if keep]
        for name, values in listing.columns.items()
    }
    return replace(listing, images=images, columns=columns)


def _folders(path: str, shards: Collection[str]) -> list[str]:
    """Return the names of the folders in a path; a shard is a file, and no folder."""
    folders = path.split("/")[:-1]
    for count in range(1, len(folders) + 1) if shards else ():
        if "/".join(folders[:count]) in shards:
            return folders[count:]
    return folders


def _top(image: ListedImage, folders: Sequence[str]) -> str:
    """Return the class folder: what a source of folders has found, else the first one."""
    if image.label in folders:
        return image.label
    return next((name for name in folders if not split_named(name)), "")


def _leaf(_: ListedImage, folders: Sequence[str]) -> str:
    return folders[-1] if folders else ""


def _by_template(listing: ImageListing, template: PathTemplate) -> ImageListing:
    """Return the listing with the label, and whatever else a template reads, of each path."""
    matches = [template.match(image.path) for image in listing.images]
    if not any(matches):
        paths = " or ".join(image.path for image in listing.images[:_NAMED]) or "none is there"
        raise DataError(
            f"data.label is '{template.text}', but no path is of that form: {paths}. Change it; it "
            "is compared with the path below the data's folder."
        )
    images = [
        image._replace(
            label=parts[LABEL],
            labels=None,
            split=_split(image, parts, template),
            group=parts.get(GROUP) or image.group,
        )
        for image, parts in zip(listing.images, matches, strict=True)
        if parts is not None
    ]
    others = [
        LeftOutFile(image.path, _OTHER_FORM, "foreign")
        for image, parts in zip(listing.images, matches, strict=True)
        if parts is None
    ]
    listing = _only(listing, [parts is not None for parts in matches])
    own = [name for name in template.names if name not in (LABEL, SPLIT, GROUP)]
    columns = {name: [parts[name] for parts in matches if parts is not None] for name in own}
    return replace(
        listing,
        images=images,
        left_out=[*listing.left_out, *others],
        columns={**listing.columns, **columns},
        empty_classes=[],
    )


_OTHER_FORM = "its path does not have the form of data.label"


def _split(image: ListedImage, parts: dict[str, str], template: PathTemplate) -> Split | None:
    if SPLIT not in parts:
        return image.split
    split = split_named(parts[SPLIT])
    if split is None:
        raise DataError(
            f"data.label is '{template.text}', but {{{SPLIT}}} is '{parts[SPLIT]}' in "
            f"{image.path}. It has to be train, validation or test; choose another name for it in "
            "the pattern."
        )
    return split


_UNICODE = "written in two forms of Unicode"


def _labels(listing: ImageListing) -> Counter[str]:
    """Return the number of images of each class, or with each label."""
    return Counter(
        label
        for image in listing.images
        for label in ((image.label,) if image.labels is None else image.labels)
        if label
    )


def _renamed(image: ListedImage, names: Mapping[str, str]) -> ListedImage:
    """Return an image with other names for its labels; equal ones of a set become one."""
    if image.labels is None:
        return image._replace(label=names.get(image.label, image.label))
    return image._replace(labels=tuple(sorted({names.get(each, each) for each in image.labels})))


def _spelled(listing: ImageListing, spelling: dict[str, str], why: str) -> ImageListing:
    """Return the listing with other names for some classes, and a note on those that meet."""
    changed = {label: name for label, name in spelling.items() if label != name}
    empty = {normalized(name) for name in listing.empty_classes}
    if not changed and empty == set(listing.empty_classes):
        return listing
    names = Counter(spelling.values())
    united = [name for name, count in names.items() if count > 1]
    images = [_renamed(image, changed) for image in listing.images]
    notes = list(listing.notes)
    if united:
        verb = "is one class" if len(united) == 1 else "are one class each"
        quoted = _some([f"'{name}'" for name in united])
        notes.append(f"{quoted} {verb}, {why}")
    rest = sorted(empty - set(names))
    return replace(listing, images=images, notes=notes, empty_classes=rest)


def _merged(listing: ImageListing) -> ImageListing:
    """Return the listing with one class for names that look equal."""
    counts = _labels(listing)
    spelling = {label: label for label in counts}
    notes = list(listing.notes)
    for group in groups_alike(list(counts)):
        name = most_frequent(group, counts)
        spelling |= dict.fromkeys(group, name)
        others = [f"'{other}'" for other in group if other != name]
        notes.append(f"data.merge_classes: {_some(others)} counted as '{name}'")
    images = [_renamed(image, spelling) for image in listing.images]
    rest = [name for name in listing.empty_classes if name not in spelling]
    return replace(listing, images=images, notes=notes, empty_classes=rest)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
