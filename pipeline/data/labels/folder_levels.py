"""Tell whether class folders are at the level that they seem to be, by the names in them.

    siteA/cat  siteA/dog        are the sites the classes, or the animals?
    siteB/cat  siteB/dog

The same names in most of the class folders are the sign, at any depth: two or more of them, shared
by several folders and making up at least half of what these contain. Numbered patients that differ
from class to class, and a single folder `images` in each, are none. So is a folder that contains
folders of the same names as the classes beside it, and are folders of images beside those of their
boxes or masks.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from patchline.pipeline.data.labels.class_names import are_images_and_marks, is_other_thing
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES, split_named

_NAMED = 3
_FEWEST = 2
"""Names that are shared, and folders that share them."""
Inside = Mapping[str, set[str]]
"""The names of the folders at one depth below each class folder."""


class UnclearLevel(NamedTuple):
    """Why it is not clear which folders are the classes, and the settings that decide."""

    reason: str
    remedy: str


def unclear_level(labelled: Iterable[tuple[str, str]]) -> UnclearLevel | None:
    """Return the question about class folders; None if they are clear.

    Args:
        labelled: the class and the path of each file, which has the class among its folders.
    """
    pairs = list(labelled)
    folders = {(label, path.rpartition("/")[0]) for label, path in pairs}
    named = {label for label, path in pairs if _is_named_like_an_image(path)}
    deep = [(label, path) for label, path in pairs if path.count("/") > 1]
    like = [pair for pair in deep if _is_named_like_an_image(pair[1])] or deep
    alone = {label for label, _ in pairs} - {label for label, _ in like}
    inner = {(label, path.rpartition("/")[0]) for label, path in like}
    return (
        _beside_marks(folders)
        or _other_things(sorted(named))
        or _unclear_folders(inner | {(label, label) for label in alone})
    )


def _unclear_folders(folders: set[tuple[str, str]]) -> UnclearLevel | None:
    """Return the question about the names of the folders in class folders.

    Args:
        folders: the class of each, and its path.
    """
    below = {}
    for label, path in folders:
        parts = path.split("/")
        below[label, path] = parts[parts.index(label) + 1 :] if label in parts else []
    classes = sorted({label for label, _ in folders})
    tops = {(label, folder.partition("/")[0]) for label, folder in folders}
    prefix = "{split}/" if any(label != top and split_named(top) for label, top in tops) else ""
    if len(classes) < _FEWEST:
        return None
    levels: list[dict[str, set[str]]] = []
    for (label, _), parts in below.items():
        for depth, name in enumerate(parts):
            if depth == len(levels):
                levels.append({each: set() for each in classes})
            levels[depth][label].add(name)
    for depth, inside in enumerate(levels):
        level = _find_shared_names(inside)
        if level:
            whole = all(len(parts) == depth + 1 for parts in below.values())
            return _question(classes, level, depth, prefix, is_leaf=whole)
        if depth == 0 and (folder := _like_the_classes(inside)):
            return _describe_nested_classes(folder, inside[folder])
    return None


def _is_named_like_an_image(path: str) -> bool:
    return f".{path.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES


def _beside_marks(folders: Collection[tuple[str, str]]) -> UnclearLevel | None:
    """Return the question about folders of images beside those of their boxes or masks."""
    inside: dict[tuple[str, ...], set[str]] = {}
    for _, folder in folders:
        parts = tuple(folder.split("/"))
        for depth, name in enumerate(parts):
            inside.setdefault(parts[:depth], set()).add(name)
    classes = {label for label, _ in folders}
    for above, names in sorted(inside.items()):
        if not are_images_and_marks(names):
            continue
        those = f"{_quote(sorted(names))} are folders of images and of their boxes or masks"
        if classes & names:
            return UnclearLevel(
                f"{those}, as in Pascal VOC, YOLO or KITTI",
                "Pass the table or the COCO JSON with the labels, or a folder whose folders are "
                "the classes, or set --data.label top if these are",
            )
        return UnclearLevel(
            f"in '{'/'.join(above)}', {those}",
            "Leave out those that are not to be learned, as in --data.ignore default --data.ignore "
            "'masks/', or set --data.label top to learn from all of them",
        )
    return None


def _other_things(classes: list[str]) -> UnclearLevel | None:
    """Return the question about class folders of which none is named like a class.

    Names of splits alone are none of its kind: those are asked about where splits are told.
    """
    others = len(classes) >= _FEWEST and all(map(is_other_thing, classes))
    if not others or all(map(split_named, classes)):
        return None
    return UnclearLevel(
        f"{_quote(classes)} are usual names for folders of something else",
        "Pass the table with the labels, or the folder whose folders are the classes, or set "
        "--data.label top if these are",
    )


def _find_shared_names(inside: Inside) -> list[str]:
    """Return the names that most class folders share; none if that is no sign."""
    counts = Counter(name for names in inside.values() for name in {_plain(each) for each in names})
    shared = {name for name, count in counts.items() if count >= _FEWEST}
    holders = sum(bool(shared & {_plain(each) for each in names}) for names in inside.values())
    if len(shared) < _FEWEST or 2 * holders < len(inside):
        return []
    if 2 * sum(counts[name] for name in shared) < sum(counts.values()):
        return []
    shown = {_plain(name): name for names in inside.values() for name in sorted(names)}
    return sorted(shown[name] for name in shared)


def _like_the_classes(inside: Inside) -> str | None:
    """Return a class folder whose folders are named like the classes beside it."""
    classes = {_plain(label) for label in inside}
    for label, names in inside.items():
        others = [name for name in names if _plain(name) in classes - {_plain(label)}]
        if others and 2 * len(others) >= len(names):
            return label
    return None


def _question(
    classes: list[str], shared: list[str], depth: int, prefix: str, *, is_leaf: bool
) -> UnclearLevel:
    above = "*/" * depth
    if all(split_named(name) for name in shared):
        splits = "{label}/" + above + "{split}/**"
        return UnclearLevel(
            f"{_quote(classes)} contain folders that are named like splits, {_quote(shared)}",
            f"Set --data.label '{splits}' if they are splits, or --data.label top if they are not",
        )
    rule = "leaf" if is_leaf else f"'{prefix}*/{above}{{label}}/**'"
    return UnclearLevel(
        f"{_quote(classes)} contain folders of the same names, {_quote(shared)}, so either may "
        "be the classes",
        f"Set --data.label top for the classes {_quote(classes)}, or --data.label {rule} for the "
        f"classes {_quote(shared)}",
    )


def _describe_nested_classes(folder: str, names: set[str]) -> UnclearLevel:
    inner = _quote(sorted(names))
    return UnclearLevel(
        f"'{folder}' contains folders that are named like the class folders beside it, {inner}",
        f"Set --data.label leaf if their images belong to those classes, --data.label top if "
        f"'{folder}' is a class, or --data.ignore default --data.ignore '{folder}/' to leave it "
        "out",
    )


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip().casefold()


def _quote(names: list[str]) -> str:
    named = [f"'{name}'" for name in names]
    if 1 < len(named) <= _NAMED:
        return f"{', '.join(named[:-1])} and {named[-1]}"
    return few_names(named, _NAMED)
