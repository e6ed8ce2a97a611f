"""WebDataset shards: tar files of samples, such as `0001.jpg` with its label in `0001.cls`.

    shards/train-000000.tar: 0001.jpg, 0001.cls, 0002.jpg, 0002.cls, …
    shards/test-000000.tar:  9001.jpg, 9001.cls, …

They are read in place; compressed ones are decompressed once. The label is in a member `cls`, or in
a field of a member `json`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    ListedImage,
    PluginConfig,
    SourceContext,
    open_archive,
    readable_archive,
    shard_index,
    shards_in,
    stem_of,
    valid_name,
)
from patchline.plugins.data_sources.shard_table import LABEL, SPLIT, ShardTable
from patchline.plugins.data_sources.table_columns import Columns, chosen_columns
from patchline.plugins.data_sources.table_rows import Places, listed_rows, own_columns


class WebDatasetConfig(PluginConfig):
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
        self.config = config
        self.path, self.work_dir = context.path, context.work_dir
        self.needs_labels, self.context = context.needs_labels, context

    def list_images(self) -> ImageListing:
        """Return one image for each sample; raise `DataError` if the shards cannot be used."""
        place = self._place()
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
            name: readable_archive(names[name], self.work_dir)
            for name in self.context.ignored.remaining(names, skipped.append)
        }
        if not shards:
            raise DataError(f"data.ignore skips all shards of {place}. Change its patterns.")
        table = ShardTable(place, shards)
        if not table.keys and table.left_out:
            raise _no_label(place, LABEL, table.left_out)
        columns = self._columns(table)
        digest = hashlib.sha256(str(place).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        root = shard_index(shards, self.work_dir / "indexes" / f"{digest}.shards")
        paths = [path or None for path in table.column(columns.image)]
        places = Places(root, paths, table.keys, "the sample has no image", [])
        listed = listed_rows(table, columns, places, self.context)
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
        config = self.config
        if not self.needs_labels and set(table.names) <= {*table.embedded, SPLIT}:
            table.add(LABEL)
        image, label = config.image_column, config.label_column
        if image is None and len(table.embedded) == 1:
            [image] = table.embedded
        several = self.context.rules.label_columns
        if label is None and LABEL in table.names and not several:
            label = LABEL
        return chosen_columns(
            table, image, label, config.split_column, config.group_column, label_columns=several
        )

    def _place(self) -> Path:
        if self.path is None:
            raise DataError("data.path is missing. Name the folder of the shards.")
        place = Path(self.path).expanduser()
        if not place.exists():
            raise DataError(f"There is no file or folder {place}. Check the path.")
        return place.resolve()


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

    from PIL import Image

    for number in range(2):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as shard:
            for sample in range(3):
                for label, colour in (("dark", 60), ("light", 200)):
                    content = io.BytesIO()
                    picture = (colour, 40 * sample, 80 * number)
                    Image.new("RGB", (24, 16), picture).save(content, "PNG")
                    key = f"{label}-{number}-{sample}"
                    for name, data in (
                        (f"{key}.png", content.getvalue()),
                        (f"{key}.cls", label.encode()),
                    ):
                        member = tarfile.TarInfo(name)
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
