"""WebDataset shards: tar files of samples, such as `0001.jpg` with its label in `0001.cls`.

    shards/train-000000.tar: 0001.jpg, 0001.cls, 0002.jpg, 0002.cls, …
    shards/test-000000.tar:  9001.jpg, 9001.cls, …

They are read in place; compressed ones are decompressed once. The label is in a member `cls`, or in
a field of a member `json`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from patchline.plugin_api import (
    IMAGE_SUFFIXES,
    DataError,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    ListedImage,
    SourceContext,
    open_archive,
    readable_archive,
    sample_key,
    shard_index,
    shards_in,
    split_named,
    stem_of,
    valid_name,
)
from patchline.plugins.data_sources.source_files import example_images, existing_path
from patchline.plugins.data_sources.table_columns import ColumnConfig, Columns, choose_columns
from patchline.plugins.data_sources.table_formats import format_cell
from patchline.plugins.data_sources.table_rows import Places, list_rows, own_columns

IMAGE, LABEL, SPLIT = "image", "cls", "split"
_JSON = "json"
_TEXTS = frozenset({LABEL, "index", "id", "txt"})
_MOST_BYTES = 1 << 20
"""Of a member that is read as text."""
_CLASS_NAMES = ("classnames.txt", "classes.txt")
_LONGEST_NUMBER = 9
"""Digits of a class number; longer labels are names."""


class _UnreadableError(Exception):
    """A text or JSON member that cannot be read; says why."""


class ShardTable:
    """A table of samples.

    The columns are `image`, or one for each kind of image if a sample has several; the text members
    (`cls`); the fields of the JSON members; and `split` if the shards or their folders are named
    for splits, instead of a field of that name.

    Args:
        place: the folder of the shards, or a single one.
        shards: uncompressed tar files, by names that tell their splits.

    Raises:
        DataError: if a shard is damaged, or only some are named for a split.
    """

    def __init__(self, place: Path, shards: dict[str, Path]) -> None:
        self.file = place
        self.keys: list[str] = []
        """The name of each sample, as its members' paths begin."""
        self.left_out: list[LeftOutFile] = []
        """Samples whose text or JSON members cannot be read."""
        self._rows: list[dict[str, str]] = []
        """The facts of each sample, and the paths of its images."""
        splits = _splits(place, list(shards))
        self.splits_by_name = any(splits)
        """Whether the shards or their folders are named for splits."""
        image_kinds: set[str] = set()
        most_images = 0
        for (name, shard), split in zip(shards.items(), splits, strict=True):
            for key, kinds in _samples(place, name, shard).items():
                images = {
                    kind: f"{name}/{path}"
                    for kind, path in kinds.items()
                    if PurePosixPath(f"x.{kind}").suffix in IMAGE_SUFFIXES
                }
                try:
                    facts = _facts(shard, kinds)
                except _UnreadableError as error:
                    example = next(iter(images.values()), f"{name}/{key}")
                    self.left_out.append(LeftOutFile(example, str(error)))
                    continue
                self.keys.append(f"{name}/{key}")
                self._rows.append({**facts, **({SPLIT: split} if split else {}), **images})
                image_kinds |= images.keys()
                most_images = max(most_images, len(images))
        if most_images == 1:
            self._rename(image_kinds)
            image_kinds = {IMAGE}
        self.embedded = frozenset(image_kinds)
        self.notes: list[str] = []
        self.names = list(dict.fromkeys(name for row in self._rows for name in row))
        self.class_names = _class_names(place, self._rows)

    def column(self, name: str) -> list[str]:
        """Return the values of a column; of an image, its path."""
        return [row.get(name, "") for row in self._rows]

    def _rename(self, kinds: set[str]) -> None:
        """Call the only image of each sample `image`, whatever its suffix."""
        for row in self._rows:
            image = next((row.pop(kind) for kind in kinds & row.keys()), None)
            row.pop(IMAGE, None)  # a field of the JSON member
            if image is not None:
                row[IMAGE] = image


def _samples(place: Path, name: str, shard: Path) -> dict[str, dict[str, str]]:
    """Return the paths of the members of each sample, by their kinds.

    Raises:
        DataError: if a sample has two members of a kind, so that one would be lost.
    """
    archive = open_archive(shard)
    repeated = list(archive.repeated)
    samples: dict[str, dict[str, str]] = {}
    for path in archive.paths:
        key, kind = sample_key(path)
        if kind and samples.setdefault(key, {}).setdefault(kind, path) != path:
            repeated.append(path)
    if repeated:
        raise DataError(
            f"The shard {name} of {place} has {len(repeated):,} members twice, such as "
            f"{repeated[0]}, so images would be lost. Shards that are each numbered from the start "
            "cannot be joined: keep them as separate files, or number the samples throughout."
        )
    return samples


def _facts(shard: Path, kinds: dict[str, str]) -> dict[str, str]:
    """Return what the text and JSON members of a sample say."""
    facts: dict[str, str] = {}
    for kind, path in kinds.items():
        if kind in _TEXTS:
            facts[kind] = _text(shard, path, kind).strip()
        elif kind == _JSON:
            facts |= _fields(_text(shard, path, kind))
    return facts


def _text(shard: Path, path: str, kind: str) -> str:
    archive = open_archive(shard)
    size = archive.size_of(path)
    if size > _MOST_BYTES:
        raise _UnreadableError(
            f"its {kind} has {size:,} bytes, and at most {_MOST_BYTES:,} are read"
        )
    try:
        with archive.open(path) as opened:
            return opened.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _UnreadableError(f"its {kind} is not UTF-8 text") from error


def _fields(text: str) -> dict[str, str]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _UnreadableError(f"its {_JSON} is not valid ({error})") from error
    if isinstance(content, dict):
        return {str(name): _plain(value) for name, value in content.items()}
    return {_JSON: _plain(content)}


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def _splits(place: Path, names: list[str]) -> list[str | None]:
    """Return the split of each shard, told by its folder or the first word of its name.

    If that tells none, a word further inside does (`imagenet1k-train-0000.tar`), provided that it
    does for every shard, and that there are several splits.
    """
    splits = [_split_of(name) for name in names]
    if not any(splits):
        inside = [_split_inside(name) for name in names]
        return inside if all(inside) and len(set(inside)) > 1 else splits
    if not all(splits):
        odd, known = (
            names[splits.index(None)],
            next(n for n, s in zip(names, splits, strict=True) if s),
        )
        raise DataError(
            f"{known} in {place} is named for a split, but {odd} is not. Rename it, or move it "
            "away."
        )
    return splits


def _split_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    told = map(_split_in_word, (*folder.split("/"), _words(file)[0]))
    return next((split for split in told if split), None)


def _split_inside(name: str) -> str | None:
    """Return the only split that the words of a shard's name mean."""
    found = set(map(_split_in_word, _words(name.rpartition("/")[2]))) - {None}
    return found.pop() if len(found) == 1 else None


def _words(file: str) -> list[str]:
    return file.replace("_", "-").replace(".", "-").split("-")


def _split_in_word(word: str) -> str | None:
    return split_named(word.rstrip("0123456789"))


def _class_names(place: Path, rows: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return the names of class numbers, from a text file beside the shards."""
    values = {row.get(LABEL, "") for row in rows} - {""}
    if not values or not all(each.isdecimal() and len(each) <= _LONGEST_NUMBER for each in values):
        return {}
    folder = place if place.is_dir() else place.parent
    for file in (folder / name for name in _CLASS_NAMES):
        if not file.is_file():
            continue
        try:
            names = file.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 text. Save it as UTF-8.") from error
        largest = max(map(int, values))
        if largest >= len(names):
            raise DataError(
                f"{file} has {len(names)} lines, but the shards have class {largest}. "
                "Write one name for each class number, from 0."
            )
        names = [name.strip() for name in names]
        lines: dict[str, int] = {}
        for line, name in enumerate(names, start=1):
            if name and lines.setdefault(name, line) != line:
                raise DataError(
                    f"{file} has the name '{format_cell(name)}' in the lines {lines[name]} and "
                    f"{line}, which would make one class of two. Write another name in one of them."
                )
        return {LABEL: names}
    return {}


class WebDatasetConfig(ColumnConfig):
    """Settings of the shards."""

    image_column: str | None = None
    """Kind of the members with the images, such as jpg or input.png; by default the only one."""

    label_column: str | None = None
    """cls, or the field of the JSON members with the label; by default guessed."""

    split_column: str | None = None
    """Field with train, validation or test; none ignores all splits; by default the names of the
    shards or their folders."""

    group_column: str | None = None
    """Field whose equal values stay in one split, such as a patient; none if there is none; by
    default a question where a field seems to be one."""

    mirror_symmetric: bool | None = None
    """Whether a mirrored image still shows its class; false for text or left-right views; by
    default measured."""


class WebDataset:
    """List the images of shards."""

    def __init__(self, config: WebDatasetConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return one image for each sample; raise `DataError` if the shards cannot be used."""
        place = existing_path(self.context.path, "the folder of the shards").resolve()
        files = shards_in(place)
        if not files:
            raise DataError(
                f"{place} holds no WebDataset shards. Give tar files whose images have a label "
                "beside them, such as 0001.jpg and 0001.cls."
            )
        top = place if place.is_dir() else place.parent
        names = {shard.relative_to(top).as_posix(): shard for shard in files}
        skipped: list[str] = []
        shards = {
            name: readable_archive(names[name], self.context.work_dir)
            for name in self.context.ignored.remaining(names, skipped.append)
        }
        if not shards:
            raise DataError(f"data.ignore skips all shards of {place}. Change its patterns.")
        table = ShardTable(place, shards)
        if not table.keys and table.left_out:
            raise _no_label(place, LABEL, table.left_out)
        columns = self._columns(table)
        digest = hashlib.sha256(str(place).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        root = shard_index(shards, self.context.work_dir / "indexes" / f"{digest}.shards")
        paths = [path or None for path in table.column(columns.image)]
        places = Places(root, paths, table.keys, "the sample has no image", [])
        listed = list_rows(table, columns, places, self.context)
        if not listed.images:
            raise _no_label(place, columns.label, [*table.left_out, *listed.left_out])
        refused = [LeftOutFile(each.path, each.reason) for each in open_archive(root).refused]
        return ImageListing(
            name=valid_name(place.name if place.is_dir() else stem_of(place)),
            root=root,
            images=listed.images,
            mirror_symmetric=self.config.mirror_symmetric,
            left_out=[*listed.left_out, *table.left_out, *refused],
            notes=[*_notes(table, columns, listed.images), *listed.notes],
            columns=own_columns(table, columns, listed.rows),
            ignored=skipped,
        )

    def _columns(self, table: ShardTable) -> Columns:
        if not self.context.needs_labels and set(table.names) <= {*table.embedded, SPLIT}:
            table.names.append(LABEL)
        given, several = self.config, self.context.rules.label_columns
        guessed = {}
        if given.image_column is None and len(table.embedded) == 1:
            [guessed["image_column"]] = table.embedded
        if given.label_column is None and LABEL in table.names and not several:
            guessed["label_column"] = LABEL
        return choose_columns(table, given.model_copy(update=guessed), several)


def _no_label(place: Path, column: str, left_out: list[LeftOutFile]) -> DataError:
    first = f", such as {left_out[0].path} ({left_out[0].reason})" if left_out else ""
    return DataError(
        f"No sample in {place} has a label in '{column}'{first}. Choose another "
        "--data.label-column, or write the shards again."
    )


def _notes(table: ShardTable, columns: Columns, images: list[ListedImage]) -> list[str]:
    """Return what was guessed, in words."""
    place, notes = table.file.name, list(columns.notes)
    guessed = {guess.partition(" ")[0] for guess in columns.guessed}
    if "labels" in guessed:
        notes.append(
            f"{place}: labels from '{columns.label}' (--data.label-column chooses another)"
        )
    if not any(image.split for image in images):
        return notes
    if columns.split == SPLIT and table.splits_by_name:
        notes.append(f"{place}: splits by the names of the shards")
    elif "splits" in guessed:
        notes.append(
            f"{place}: splits from '{columns.split}' (--data.split-column chooses another)"
        )
    return notes


def _write_example(folder: Path) -> str:
    """Write two shards of six small images of two classes and return their folder."""
    import io
    import tarfile

    samples = list(example_images(12))
    for first in (0, 6):
        with tarfile.open(folder / f"{first:06d}.tar", "w") as shard:
            for number, (label, content) in enumerate(samples[first : first + 6], first):
                for kind, data in (("png", content), ("cls", label.encode())):
                    member = tarfile.TarInfo(f"{number}.{kind}")
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
    return str(folder)


plugin = DataSourcePlugin(
    summary="WebDataset shards: tar files with an image and a label for each sample",
    paper="",
    config_class=WebDatasetConfig,
    build=WebDataset,
    example=_write_example,
    reads_ranges=True,
)
