"""COCO JSON: images, categories and annotations, as labelling tools and Roboflow export them.

Annotations without `bbox` are labels of their image. What boxes, masks and key points mean for
an image's labels is a question, which `data.boxes` answers. An image without annotations has no
label. The format: Lin et al., arXiv 1405.0312; https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    PluginConfig,
    SourceContext,
    check_branches,
    coco_files,
    split_named,
)
from patchline.plugins.data_sources.named_images import ImagePlaces, find_images, image_root
from patchline.plugins.data_sources.source_files import example_images, existing_path
from patchline.plugins.data_sources.table_formats import format_cell
from patchline.plugins.data_sources.tool_labels import (
    BOXES,
    MalformedError,
    ToolImage,
    check_malformed,
    check_type,
    json_of,
    tool_listing,
)

_REGION = ("bbox", "segmentation", "keypoints")


class CocoConfig(PluginConfig):
    """Settings of COCO JSON."""


class _Export(NamedTuple):
    """What one file holds."""

    images: list[ToolImage]
    classes: list[str]
    regions: int
    """Annotations that are boxes, masks or key points."""
    malformed: list[str]
    """Annotations that cannot be used, with the reason."""
    notes: list[str]


class _Annotations(NamedTuple):
    """What the annotations of one file say."""

    labels: dict[Any, set[str]]
    """The labels of each image, by the image's id."""
    used: set[Any]
    """The ids of their categories."""
    unknown: dict[Any, str]
    """Why the labels of an image are not known, by id."""
    malformed: list[str]
    regions: int


class Coco:
    """List the images of COCO JSON with the categories of their annotations."""

    def __init__(self, _: CocoConfig, context: SourceContext) -> None:
        self.context = context

    def list_images(self) -> ImageListing:
        """Return the images; raise `DataError` if the export cannot be used."""
        top = existing_path(self.context.path, "the JSON file").resolve()
        files = coco_files(top) if top.is_dir() else [top]
        if not files:
            raise DataError(
                f"{top} holds no _annotations.coco.json. Give the JSON file, or its folder."
            )
        rules = self.context.rules
        base = top if top.is_dir() else _image_folder(top)
        root = image_root(base, rules)
        found = ImagePlaces(root, [], [])
        images: list[ToolImage] = []
        classes: dict[str, None] = {}
        regions = 0
        malformed: list[str] = []
        notes: list[str] = []
        for file in files:
            export = self._read(file)
            notes += export.notes
            malformed += export.malformed
            inside = file.parent.relative_to(top).as_posix() if top.is_dir() else ""
            prefix = f"{inside}/" if inside not in ("", ".") else ""
            split = split_named(inside) if prefix else None
            names = [image.name for image in export.images]
            images += [
                image._replace(name=f"{prefix}{image.name}", split=split) for image in export.images
            ]
            if rules.root is not None:
                names, prefix = [f"{prefix}{name}" for name in names], ""
            own = find_images(file, names, root / prefix, is_set=rules.root is not None)
            found.paths.extend(path and f"{prefix}{path}" for path in own.paths)
            found.notes.extend(own.notes)
            classes |= dict.fromkeys(export.classes)
            regions += export.regions
        if not images:
            raise DataError(f"{top} lists no images. Export it again.")
        how = "the categories of an image's annotations are its labels"
        if malformed:
            verb = "annotation is" if len(malformed) == 1 else "annotations are"
            notes.append(
                f"{top.name}: {len(malformed):,} {verb} ignored, and images whose labels are not "
                f"known because of that are left out: {malformed[0]}"
            )
        if regions:
            what = "their categories are" if rules.boxes == "labels" else "none is"
            verb = "annotation is a region" if regions == 1 else "annotations are regions"
            notes.append(
                f"{top.name}: {regions:,} {verb} of an image; {what} used (data.boxes "
                f"{rules.boxes})"
            )
        return tool_listing(
            top, images, found, self.context, how=how, classes=list(classes), notes=notes
        )

    def _read(self, file: Path) -> _Export:
        content = check_type(json_of(file), dict, "The content", file)
        for key in ("images", "annotations", "categories"):
            if key not in content:
                raise DataError(
                    f"{file} has no '{key}', so it is not COCO JSON. Export it again, or give the "
                    "labels as a table."
                )
            check_type(content[key], list, f"'{key}'", file)
        categories = _categories(content["categories"], file)
        names: dict[Any, str] = {}
        for each in content["images"]:
            image = check_type(each, dict, "An image", file)
            number = _identity(image.get("id"), "'id' of an image", file)
            if number in names:
                raise DataError(f"Two images in {file} have the id {number}. Export it again.")
            names[number] = check_type(
                image.get("file_name"), str, f"'file_name' of image {number}", file
            )
        read = self._annotations(content["annotations"], names, categories, file)
        notes: list[str] = []
        if self.context.needs_labels:
            above = _above(content["categories"], read.used, file)
            for labels in read.labels.values():
                labels -= {above[label] for label in labels}
            left = set[str]().union(*read.labels.values())
            paths = [(above[name], name) if above[name] else (name,) for name in sorted(left)]
            notes = [f"{file.name}: {note}" for note in check_branches(paths, str(file))]
        images = [
            ToolImage(
                name, tuple(sorted(read.labels[number])), unknown=read.unknown.get(number, "")
            )
            for number, name in names.items()
        ]
        used = _meant(content["categories"], categories, read.labels)
        return _Export(images, used, read.regions, read.malformed, notes)

    def _annotations(
        self, given: list[Any], names: Container[Any], categories: dict[Any, str], file: Path
    ) -> _Annotations:
        """Return the labels that annotations give to the images with these ids."""
        read = _Annotations(defaultdict(set), set(), {}, [], 0)
        for place, each in enumerate(given, start=1):
            try:
                number, category = _pair(each, place, names, categories, file)
            except MalformedError as error:
                read.malformed.append(error.reason)
                if isinstance(each, dict) and isinstance(each.get("image_id"), int | str):
                    read.unknown.setdefault(each["image_id"], error.reason)
                continue
            if any(each.get(key) for key in _REGION):
                read = read._replace(regions=read.regions + 1)
                if self.context.rules.boxes != "labels":
                    continue
            read.labels[number].add(categories[category])
            read.used.add(category)
        if not self.context.needs_labels:
            return read._replace(unknown={}, malformed=[])
        check_malformed(file, read.malformed, len(given), "annotations")
        if read.regions and self.context.rules.boxes == "ask":
            raise DataError(
                f"{read.regions:,} of {len(given):,} annotations in {file} are boxes or other "
                f"regions. Set {BOXES}."
            )
        return read


def _pair(
    each: Any, place: int, names: Container[Any], categories: Container[Any], file: Path
) -> tuple[Any, Any]:
    """Return the image and the category of an annotation.

    Args:
        each: the annotation.
        place: its number in the file.
        names: the images of the file, by id.
        categories: the categories of the file, by id.
        file: the COCO file, for messages.

    Raises:
        MalformedError: if it has none that the file lists; it names the annotation.
    """
    number = each.get("id") if isinstance(each, dict) else None
    what = f"Annotation {format_cell(str(number))}" if isinstance(number, int | str) else ""
    what = what or f"The annotation number {place:,}"
    annotation = check_type(each, dict, what, file)
    image = _identity(
        annotation.get("image_id"), f"'image_id' of {what[:1].lower()}{what[1:]}", file
    )
    category = _identity(
        annotation.get("category_id"), f"'category_id' of {what[:1].lower()}{what[1:]}", file
    )
    for kind, value, among in (("image", image, names), ("category", category, categories)):
        if value not in among:
            reason = f"is of {kind} {format_cell(str(value))}, which the file does not list"
            raise MalformedError(what, file, reason)
    return image, category


def _categories(given: list[Any], file: Path) -> dict[Any, str]:
    categories: dict[Any, str] = {}
    for each in given:
        category = check_type(each, dict, "A category", file)
        number = _identity(category.get("id"), "'id' of a category", file)
        if number in categories:
            raise DataError(f"Two categories in {file} have the id {number}. Export it again.")
        categories[number] = check_type(
            category.get("name"), str, f"'name' of category {format_cell(str(number))}", file
        )
    return categories


def _above(given: list[Any], used: Container[Any], file: Path) -> dict[str, str]:
    """Return what each used category is a part of, by name; empty for one that is no part.

    Raises:
        DataError: if two have one name, and are parts of different ones.
    """
    above = [
        (each["name"], str(each.get("supercategory") or "")) for each in given if each["id"] in used
    ]
    check_branches(((whole, name) if whole else (name,) for name, whole in above), str(file))
    return {name: "" if whole == name else whole for name, whole in above}


def _meant(given: list[Any], categories: dict[Any, str], labels: dict[Any, set[str]]) -> list[str]:
    """Return the names of the categories, but not one that Roboflow adds above all others."""
    above = {str(each.get("supercategory")) for each in given}
    used = {label for each in labels.values() for label in each}
    return [name for name in categories.values() if name in used or name not in above]


def _identity(value: Any, what: str, file: Path) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        short = format_cell(json.dumps(value, default=str)[:60])
        raise MalformedError(what, file, f"is {short}, but has to be a number")
    return value


def _image_folder(file: Path) -> Path:
    """Return the folder of the images: that of the file, or the one around `annotations`."""
    folder = file.parent
    return folder.parent if folder.name.lower() == "annotations" else folder


def _write_example(folder: Path) -> str:
    """Write six small images and a COCO file of two labels; return the file."""
    (folder / "images").mkdir()
    images, annotations, names = [], [], ["dark", "light"]
    for number, (label, content) in enumerate(example_images()):
        name, category = f"{number}.png", names.index(label)
        (folder / "images" / name).write_bytes(content)
        images.append({"id": number, "file_name": name, "width": 24, "height": 16})
        annotations.append({"id": number, "image_id": number, "category_id": category})
    categories = [{"id": place, "name": name} for place, name in enumerate(names)]
    export = {"images": images, "annotations": annotations, "categories": categories}
    file = folder / "example.json"
    file.write_text(json.dumps(export), encoding="utf-8")
    return str(file)


plugin = DataSourcePlugin(
    summary="COCO JSON: images with the categories of their annotations",
    paper="arXiv:1405.0312",
    config_class=CocoConfig,
    build=Coco,
    example=_write_example,
)
