"""A zip or tar archive of class folders, read without unpacking it.

    flowers.zip: rose/1.jpg, tulip/2.jpg        or        flowers/train/rose/1.jpg, …

A compressed tar can only be read from start to end, so it is decompressed once into the workspace.
Folders that contain nothing but one other folder are skipped.
"""

from __future__ import annotations

from pathlib import Path

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    SourceContext,
    open_archive,
    readable_archive,
    split_named,
    stem_of,
    valid_name,
)
from patchline.plugins.data_sources.class_folders import ClassFolderConfig, ClassFolders
from patchline.plugins.data_sources.source_files import example_images, existing_path


class ArchiveConfig(ClassFolderConfig):
    """Settings of the archive."""


class ImageArchive:
    """List the images in an archive, labelled by the name of their class folder."""

    def __init__(self, config: ArchiveConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return every file in the archive; raise `DataError` if it cannot be read."""
        file = self._file()
        readable = readable_archive(file, self.context.work_dir, self.context.rules.name_encoding)
        archive = open_archive(readable)
        skipped: list[str] = []
        files = self.context.ignored.remaining(archive.paths, skipped.append)
        folders = [
            each for each in archive.folders if not self.context.ignored.skipped_part(f"{each}/")
        ]
        outer = ClassFolders(readable, folders, files)
        content = _unwrap(outer)
        if not archive.paths and not archive.refused:
            raise DataError(f"{file} holds no files. Pass an archive of images in class folders.")
        if not archive.paths:
            first = archive.refused[0]
            raise DataError(
                f"{file} holds no file that can be read: {first.path} {first.reason}. Pack the "
                "images themselves, in class folders."
            )
        images, empty = content.images(
            self.config.split_folders, needs_labels=self.context.needs_labels
        )
        inner = content.root.relative_to(readable).as_posix()
        beside = [path for path in outer.files if not path.startswith(f"{inner}/")]
        return ImageListing(
            name=valid_name(stem_of(file)),
            root=content.root,
            images=images,
            mirror_symmetric=self.config.mirror_symmetric,
            empty_classes=empty,
            left_out=[
                *(LeftOutFile(member.path, member.reason) for member in archive.refused),
                *(
                    LeftOutFile(path, "is not in a class folder", "foreign")
                    for path in beside
                    if inner != "."
                ),
            ],
            notes=[each for each in (archive.note, _note_on_repeated(archive.repeated)) if each],
            ignored=skipped,
        )

    def _file(self) -> Path:
        file = existing_path(self.context.path, "the archive", "archive")
        if not file.is_file():
            raise DataError(
                f"{file} is not a file. Set data.source to image_folder to read a folder."
            )
        return file.resolve()


def _unwrap(content: ClassFolders) -> ClassFolders:
    """Return the innermost folder that holds all class folders: `flowers/` of `flowers/rose/…`."""
    while True:
        filled = content.filled(content.top)
        if len(filled) != 1 or content.has_images_beside():
            return content
        if split_named(filled[0], exactly=True):
            return content
        inner = content.inside(filled[0])
        if inner.has_images_beside() or not inner.filled(inner.top):
            return content
        content = inner


def _note_on_repeated(paths: list[str]) -> str:
    if not paths:
        return ""
    are = "name is" if len(paths) == 1 else "names are"
    return (
        f"{len(paths):,} {are} in the archive several times, such as {paths[0]}: of each, the last "
        "file is used, as if it were unpacked"
    )


def _write_example(folder: Path) -> str:
    """Write a zip archive of two classes of three small images and return its path."""
    import zipfile

    file = folder / "example.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number, (label, content) in enumerate(example_images()):
            archive.writestr(f"{label}/{number}.png", content)
    return str(file)


plugin = DataSourcePlugin(
    summary="A zip or tar archive with one folder of images for each class",
    paper="",
    config_class=ArchiveConfig,
    build=ImageArchive,
    example=_write_example,
    reads_ranges=True,
)
