"""Class names that look wrong: names that look equal, that mean nothing, that are no names at all.

Nothing here changes a name but `normalize_name` and `alike`, which say what is the same name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
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


def normalize_name(name: str) -> str:
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
        counts: the number of images of each class.
    """
    names = sorted(counts)
    misread = {name: meaning for name in names if (meaning := _meant(name))}

    def those(is_odd: Callable[[str], bool]) -> dict[str, str]:
        return {name: _quote([name]) for name in names if is_odd(name)}

    suspicions = [
        _similar(names, counts),
        _same_answer(names),
        _copies(names),
        _missing(names, counts),
        _suspicious(
            "class names that are usual for folders of something else",
            those(is_other_thing),
            "If they are no classes, move them out of the data, or leave them out with "
            "--data.ignore",
        ),
        _suspicious(
            "class names that were read in the wrong encoding",
            {name: f"{_quote([name])} for {_quote([meant])}" for name, meant in misread.items()},
            "Rename them; for an archive, set --data.name-encoding",
        ),
        _suspicious(
            "class names with characters that cannot be seen, or spaces at an end",
            those(_has_unseen),
            "Rename them",
        ),
        _suspicious(
            "class names that mix letters of several alphabets within a word",
            those(_mixes_alphabets),
            "Type them again if they are meant to be Latin",
        ),
        _suspicious(
            "class names that look like file names or sentences",
            those(_is_file_name),
            "Check that --data.label-column, or --data.label, chooses the classes",
        ),
        _suspicious(
            "class names that look like several labels of one image",
            those(partial(_is_several, {name.strip().casefold() for name in names})),
            "If they are, set --data.label-separator to what separates them",
        ),
        numbers(counts) or identifiers(counts),
    ]
    return [each for each in suspicions if each]


def _suspicious(sentence: str, shown: Mapping[str, str], remedy: str) -> Suspicion | None:
    """Return what is wrong about some names, given how each is shown; None without names."""
    if not shown:
        return None
    words = f"{sentence}: {few_names(shown.values(), 3)}"
    return Suspicion("suspicious_class", tuple(shown), words, remedy)


def identifiers(counts: Mapping[str, int]) -> Suspicion | None:
    """Return what is wrong if nearly every image has a class of its own."""
    alone = sum(count == 1 for count in counts.values())
    if len(counts) < _FEWEST_IDENTIFIERS or alone < _ALONE * len(counts):
        return None
    return Suspicion(
        "suspicious_labels",
        tuple(sorted(counts)),
        f"{alone:,} of {len(counts):,} classes have a single image, such as "
        f"{_quote(sorted(counts))}: they look like the names of images or of objects, not like "
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
        f"{' and '.join(f'{_quote([each])} ({counts[each]:,})' for each in group[:4])} "
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


def _collapse_spaces(name: str) -> str:
    return _SPACES.sub(" ", name).strip()


_WAYS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("invisible characters", _visible),
    ("spaces, dashes or underscores", _collapse_spaces),
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
                f"classes that may be the same answer: {_quote(same)}",
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
    shown = [f"{_quote([copy])} beside {_quote([name])}" for copy, name in copies.items()]
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
    return _suspicious(
        "class names that may mean that there is no label",
        {name: f"{_quote([name])} ({counts[name]:,})" for name in missing},
        "If they do, leave the images out: --data.no-label for a table, --data.ignore for folders",
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


HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of characters that cannot be seen."""
_JOINERS = "\u200c\u200d"


def _has_unseen(name: str) -> bool:
    """Return whether a name has hidden characters, but for joiners that scripts and emoji need."""
    hidden = {each for each in name if unicodedata.category(each) in HIDDEN}
    others = "".join(each for each in name if each not in _JOINERS)
    is_joined = hidden <= set(_JOINERS) and not others.isascii()
    return name != name.strip() or bool(hidden and not is_joined)


def _mixes_alphabets(name: str) -> bool:
    """Return whether one word of a name has letters of alphabets whose letters look alike."""
    for word in () if name.isascii() else _SPACES.split(name):
        letters = [unicodedata.name(each, "").partition(" ")[0] for each in word if each.isalpha()]
        if len(set(letters) & {"LATIN", "CYRILLIC", "GREEK"}) > 1:
            return True
    return False


def _is_file_name(name: str) -> bool:
    return f".{name.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES or len(name) > _LONGEST


def _is_several(plain_names: Collection[str], name: str) -> bool:
    """Return whether at least two of the parts of a name are names, too."""
    parts = [part.strip().casefold() for part in _SEPARATED.split(name)]
    return len(parts) > 1 and sum(part in plain_names for part in parts) > 1


def _quote(names: Sequence[str]) -> str:
    short = (name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names)
    return few_names((f"'{visible(name)}'" for name in short), 3)


def most_frequent(names: Sequence[str], counts: Counter[str]) -> str:
    """Return the name that most images have; of several, the first by alphabet."""
    return min(names, key=lambda name: (-counts[name], name))
