"""Class names that look wrong: names that look equal, that mean nothing, that are no names at all.

Nothing here changes a name but `normalized` and `alike`, which say what is the same name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from patchline.pipeline.data.labels.label_cells import number_in
from patchline.pipeline.terminal_words import few_names, visible
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES, split_named

SuspicionKind = Literal["similar_classes", "suspicious_class", "suspicious_labels"]

_FEWEST_NUMBERS, _FEWEST_IDENTIFIERS = 10, 10
_ALONE = 0.9
_FEW_EACH = 5
_LONGEST = 80
_NOTHING = frozenset({
    "nan", "none", "null", "na", "n/a", "<na>", "#n/a", "nil", "nat", "?", "??", "-", "--", ".",
    "_", "unknown", "unlabeled", "unlabelled", "undefined", "missing", "todo", "tbd", "no label",
    "no_label", "nolabel", "not labeled", "unnamed", "untitled", "untitled folder", "new folder",
    "unsorted", "unassigned", "unclassified", "unannotated", "to label", "to_label",
})  # fmt: skip
"""Names that often stand for a missing label, without case."""
_OF_IMAGES = frozenset({
    "images", "image", "imgs", "img", "photos", "pictures", "jpegimages", "jpgs", "pngs",
})  # fmt: skip
_OF_MARKS = frozenset({
    "annotations", "annotation", "labels", "label", "masks", "mask", "bboxes", "boxes", "calib",
    "segmentationclass", "segmentationobject", "groundtruth", "imagesets", "velodyne",
})  # fmt: skip
_OTHER_THINGS = (
    _OF_IMAGES
    | _OF_MARKS
    | {
        "metadata",
        "thumbnails",
        "thumbs",
        "thumb",
        "backup",
        "tmp",
        "temp",
        "cache",
        "data",
        "dataset",
        "raw",
        "originals",
    }
)
"""Names of folders that mostly hold something else than the images of one class."""
_COPY = re.compile(r"(?i)(copy of )?(?P<name>.+?)( ?\(\d+\)|( -)? copy( \d+)?|( -)? kopie)?")
_TRUE, _FALSE = frozenset({"true", "yes", "y", "t", "1"}), frozenset({"false", "no", "n", "f", "0"})
_SEPARATED = re.compile(r"[|;,]")
_SPACES = re.compile(r"[\s_-]+")
_LOOK_ALIKE = str.maketrans(
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422"
    "\u0423\u0425\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501"
    "\u051b\u051d\u04bb"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5"
    "\u03a7\u03bf\u03b9",
    "ABESIJKMHOPCTYXaeopcyxijsdqwhABEZHIKMNOPTYXoi",
)
"""Cyrillic and Greek letters, and the Latin ones that look the same."""
_CODE_PAGES = ("cp1252", "cp437", "mac_roman", "latin_1")


class Suspicion(NamedTuple):
    """What looks wrong about some classes."""

    kind: SuspicionKind
    classes: tuple[str, ...]
    sentence: str
    remedy: str


def normalized(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC), as most systems write it."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


@lru_cache(maxsize=1 << 16)
def alike(name: str) -> str:
    """Return what names have in common that look equal: neither case, nor spaces, nor alphabet.

    Invisible characters are left out, and letters of other alphabets that look the same are
    replaced, so that the result is only good for comparing.
    """
    compatible = unicodedata.normalize("NFKC", name)
    shown = "".join(each for each in compatible if unicodedata.category(each) not in ("Cf", "Cc"))
    plain = _SPACES.sub(" ", shown.translate(_LOOK_ALIKE)).strip().casefold()
    return plain or name


def groups_alike(names: Collection[str]) -> list[list[str]]:
    """Return the names that look equal, in sorted groups of at least two."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(alike(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def is_other_thing(name: str) -> bool:
    """Return whether a name is usual for folders of something else: `JPEGImages`, `images_001`."""
    return _bare(name) in _OTHER_THINGS or bool(split_named(name) or split_named(_bare(name)))


def are_images_and_marks(names: Collection[str]) -> bool:
    """Return whether folders side by side hold images and their boxes or masks.

    Pascal VOC calls them `JPEGImages` and `Annotations`, KITTI `image_2` and `label_2`, YOLO
    `images` and `labels`.
    """
    plain = set(map(_bare, names))
    return bool(plain & _OF_IMAGES and plain & _OF_MARKS)


def _bare(name: str) -> str:
    """Return a name in lower case, without numbers, spaces, dashes and underscores at its ends.

    It is empty if there is no letter in it.
    """
    bare = name.casefold().strip("0123456789 _-")
    return bare if any(map(str.isalpha, bare)) else ""


def suspicions(counts: Mapping[str, int]) -> list[Suspicion]:
    """Return what looks wrong about classes.

    Args:
        counts: images of each class.
    """
    names = sorted(counts)
    suspicions = [
        _similar(names, counts),
        _same_answer(names),
        _copies(names),
        _missing(names, counts),
        _other_things(names),
        _misread(names),
        _invisible(names),
        _mixed_alphabets(names),
        _file_names(names),
        _several_labels(names),
        numbers(counts) or identifiers(counts),
    ]
    return [each for each in suspicions if each]


def identifiers(counts: Mapping[str, int]) -> Suspicion | None:
    """Return what is wrong if nearly every image has a class of its own."""
    alone = sum(count == 1 for count in counts.values())
    if len(counts) < _FEWEST_IDENTIFIERS or alone < _ALONE * len(counts):
        return None
    return Suspicion(
        "suspicious_labels",
        tuple(sorted(counts)),
        f"{alone:,} of {len(counts):,} classes have a single image, such as "
        f"{_quoted(sorted(counts))}: they look like the names of images or of objects, not like "
        "classes",
        "Choose another --data.label-column, or another part of the paths with --data.label",
    )


def numbers(counts: Mapping[str, int]) -> Suspicion | None:
    """Return what is wrong if the labels are measurements instead of classes."""
    values = {name: number_in(name) for name in counts}
    known = [value for value in values.values() if value is not None]
    if len(known) < _FEWEST_NUMBERS or len(known) < len(values):
        return None
    fractions = sum(not value.is_integer() for value in known)
    few_each = sum(counts.values()) < _FEW_EACH * len(counts)
    if not (2 * fractions >= len(known) or (few_each and len(known) > 5 * _FEWEST_NUMBERS)):
        return None
    low, high = (min(known), max(known))
    return Suspicion(
        "suspicious_labels",
        tuple(sorted(counts)),
        f"the {len(counts):,} classes are numbers from {low:g} to {high:g}: they look like a "
        "number to predict, not like classes",
        "Patchline classifies; write a few ranges as classes, or choose another "
        "--data.label-column",
    )


def _similar(names: Sequence[str], counts: Mapping[str, int]) -> Suspicion | None:
    groups = groups_alike(names)
    if not groups:
        return None
    shown = [
        f"{' and '.join(f'{_quoted([each])} ({counts[each]:,})' for each in group[:4])} "
        f"({_difference(group)})"
        for group in groups
    ]
    return Suspicion(
        "similar_classes",
        tuple(name for group in groups for name in group),
        f"classes whose names look equal: {few_names(shown, 3)}",
        "Rename them, or add --data.merge-classes if they mean the same",
    )


def _difference(group: Sequence[str]) -> str:
    """Return in which ways names differ that look equal."""
    ways = []
    left = set(group)
    for way, same in _WAYS:
        fewer = {same(name) for name in left}
        if len(fewer) < len(left):
            ways.append(way)
        left = fewer
    return "; ".join(ways)


def _visible(name: str) -> str:
    return "".join(each for each in name if unicodedata.category(each) != "Cf")


def _spaced(name: str) -> str:
    return _SPACES.sub(" ", name).strip()


_WAYS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("invisible characters", _visible),
    ("spaces, dashes or underscores", _spaced),
    ("upper and lower case", str.casefold),
    ("letters that look alike", alike),
)


def _same_answer(names: Sequence[str]) -> Suspicion | None:
    plain = {name: name.casefold() for name in names}
    for answers in (_TRUE, _FALSE):
        same = [name for name, each in plain.items() if each in answers]
        words = {plain[name] for name in same}
        if len(words) > 1 and set(plain.values()) <= _TRUE | _FALSE:
            return Suspicion(
                "similar_classes",
                tuple(same),
                f"classes that may be the same answer: {_quoted(same)}",
                "Write the same word for the same answer",
            )
    return None


def _copies(names: Sequence[str]) -> Suspicion | None:
    all_names, copies = set(names), {}
    for name in names:
        match = _COPY.fullmatch(name)
        if match and match["name"] != name and match["name"] in all_names:
            copies[name] = match["name"]
    if not copies:
        return None
    shown = [f"{_quoted([copy])} beside {_quoted([name])}" for copy, name in copies.items()]
    return Suspicion(
        "similar_classes",
        tuple(sorted({*copies, *copies.values()})),
        f"class folders that look like copies of others: {few_names(shown, 3)}",
        "Move their images together, or delete the copies",
    )


def _missing(names: Sequence[str], counts: Mapping[str, int]) -> Suspicion | None:
    missing = [name for name in names if {name.strip().casefold(), _bare(name)} & _NOTHING]
    if set(missing) == {"-"} and "+" in names:
        return None  # negative and positive
    if not missing:
        return None
    shown = [f"{_quoted([name])} ({counts[name]:,})" for name in missing]
    return Suspicion(
        "suspicious_class",
        tuple(missing),
        f"class names that may mean that there is no label: {few_names(shown, 3)}",
        "If they do, leave the images out: --data.no-label for a table, --data.ignore for folders",
    )


def _other_things(names: Sequence[str]) -> Suspicion | None:
    others = [name for name in names if is_other_thing(name)]
    if not others:
        return None
    return Suspicion(
        "suspicious_class",
        tuple(others),
        "class names that are usual for folders of something else: "
        f"{few_names(_each_quoted(others), 3)}",
        "If they are no classes, move them out of the data, or leave them out with --data.ignore",
    )


def _misread(names: Sequence[str]) -> Suspicion | None:
    meant = {name: meaning for name in names if (meaning := _meant(name))}
    if not meant:
        return None
    shown = [f"{_quoted([name])} for {_quoted([meaning])}" for name, meaning in meant.items()]
    return Suspicion(
        "suspicious_class",
        tuple(meant),
        f"class names that were read in the wrong encoding: {few_names(shown, 3)}",
        "Rename them; for an archive, set --data.name-encoding",
    )


def _meant(name: str) -> str | None:
    """Return the name that UTF-8 read as another encoding was meant to be; None for others."""
    if name.isascii():
        return None
    if "\N{REPLACEMENT CHARACTER}" in name:
        return "a name that was lost"
    for page in _CODE_PAGES:
        try:
            meant = name.encode(page).decode("utf-8")
        except UnicodeError:
            continue
        if meant != name and meant.isprintable():
            return meant
    return None


def _invisible(names: Sequence[str]) -> Suspicion | None:
    invisible = [
        name
        for name in names
        if name != name.strip() or any(unicodedata.category(each) in _HIDDEN for each in name)
    ]
    invisible = [name for name in invisible if not _joins_letters(name)]
    if not invisible:
        return None
    return Suspicion(
        "suspicious_class",
        tuple(invisible),
        "class names with characters that cannot be seen, or spaces at an end: "
        f"{few_names(_each_quoted(invisible), 3)}",
        "Rename them",
    )


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


def _joins_letters(name: str) -> bool:
    """Return whether the only hidden characters are joiners, which some scripts and emoji need."""
    rest = [each for each in name if unicodedata.category(each) in _HIDDEN]
    joined = all(each in _JOINERS for each in rest) and not name.isascii()
    others = [each for each in name if each not in _JOINERS]
    return joined and name == name.strip() and not all(each.isascii() for each in others)


def _mixed_alphabets(names: Sequence[str]) -> Suspicion | None:
    mixed = [name for name in names if len(_alphabets(name)) > 1]
    if not mixed:
        return None
    return Suspicion(
        "suspicious_class",
        tuple(mixed),
        f"class names that mix letters of several alphabets within a word: "
        f"{few_names(_each_quoted(mixed), 3)}",
        "Type them again if they are meant to be Latin",
    )


def _alphabets(name: str) -> set[str]:
    """Return the alphabets in one word of a name, of those whose letters look alike."""
    if name.isascii():
        return set()
    for word in _SPACES.split(name):
        letters = [unicodedata.name(each, "").partition(" ")[0] for each in word if each.isalpha()]
        used = set(letters) & {"LATIN", "CYRILLIC", "GREEK"}
        if len(used) > 1:
            return used
    return set()


def _file_names(names: Sequence[str]) -> Suspicion | None:
    file_names = [
        name
        for name in names
        if f".{name.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES or len(name) > _LONGEST
    ]
    if not file_names:
        return None
    return Suspicion(
        "suspicious_class",
        tuple(file_names),
        "class names that look like file names or sentences: "
        f"{few_names(_each_quoted(file_names), 3)}",
        "Check that --data.label-column, or --data.label, chooses the classes",
    )


def _several_labels(names: Sequence[str]) -> Suspicion | None:
    plain_names = {name.strip().casefold() for name in names}
    combined = []
    for name in names:
        parts = [part.strip().casefold() for part in _SEPARATED.split(name)]
        if len(parts) > 1 and sum(part in plain_names for part in parts) > 1:
            combined.append(name)
    if not combined:
        return None
    return Suspicion(
        "suspicious_class",
        tuple(combined),
        "class names that look like several labels of one image: "
        f"{few_names(_each_quoted(combined), 3)}",
        "If they are, set --data.label-separator to what separates them",
    )


def _each_quoted(names: Sequence[str]) -> Iterator[str]:
    return (_quoted([name]) for name in names)


def _quoted(names: Sequence[str]) -> str:
    short = (name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names)
    return few_names((f"'{visible(name)}'" for name in short), 3)


def most_frequent(names: Sequence[str], counts: Counter[str]) -> str:
    """Return the name that most images have; of several, the first by alphabet."""
    return min(names, key=lambda name: (-counts[name], name))
