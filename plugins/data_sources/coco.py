"""COCO JSON: images, categories and annotations, as labelling tools and Roboflow export them.

Annotations without `bbox` are labels of their image. What boxes, masks and key points mean for
an image's labels is a question, which `data.boxes` answers. An image without annotations has no
label. The format: Lin et al., arXiv 1405.0312; https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    PluginConfig,
    SourceContext,
    coco_files,
    split_named,
)
from patchline.plugins.data_sources.cell_text import shown
from patchline.plugins.data_sources.named_images import find_images, image_root
from patchline.plugins.data_sources.tool_labels import (
    BOXES,
    ToolImage,
    checked,
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


class Coco:
    """List the images of COCO JSON with the categories of their annotations."""

    def __init__(self, _: CocoConfig, context: SourceContext) -> None:
        self.context = context

    def list_images(self) -> ImageListing:
        """Return the images; raise `DataError` if the export cannot be used."""
        top = self._top()
        files = coco_files(top) if top.is_dir() else [top]
        if not files:
            raise DataError(
                f"{top} holds no _annotations.coco.json. Give the JSON file, or its folder."
            )
        rules = self.context.rules
        base = top if top.is_dir() else _image_folder(top)
        root = image_root(base, rules)
        images: list[ToolImage] = []
        classes: dict[str, None] = {}
        regions = 0
        for file in files:
            export = self._read(file)
            inside = file.parent.relative_to(top).as_posix() if top.is_dir() else ""
            prefix = f"{inside}/" if inside not in ("", ".") else ""
            split = split_named(inside) if prefix else None
            images += [
                image._replace(name=f"{prefix}{image.name}", split=split) for image in export.images
            ]
            classes |= dict.fromkeys(export.classes)
            regions += export.regions
        if not images:
            raise DataError(f"{top} lists no images. Export it again.")
        names = [image.name for image in images]
        found = find_images(top, names, root, is_set=rules.root is not None)
        how = "the categories of an image's annotations are its labels"
        notes = []
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
        content = checked(json_of(file), dict, "The content", file)
        for key in ("images", "annotations", "categories"):
            if key not in content:
                raise DataError(
                    f"{file} has no '{key}', so it is not COCO JSON. Export it again, or give the "
                    "labels as a table."
                )
            checked(content[key], list, f"'{key}'", file)
        categories = _categories(content["categories"], file)
        names: dict[Any, str] = {}
        for each in content["images"]:
            image = checked(each, dict, "An image", file)
            number = _identity(image.get("id"), "An image", file)
            if number in names:
                raise DataError(f"Two images in {file} have the id {number}. Export it again.")
            names[number] = checked(
                image.get("file_name"), str, f"'file_name' of image {number}", file
            )
        labels: dict[Any, set[str]] = {number: set() for number in names}
        regions = 0
        for each in content["annotations"]:
            annotation = checked(each, dict, "An annotation", file)
            number = _identity(annotation.get("image_id"), "An annotation's image_id", file)
            category = _identity(annotation.get("category_id"), "An annotation's category_id", file)
            if number not in names or category not in categories:
                kind, odd = ("image", number) if number not in names else ("category", category)
                raise DataError(
                    f"An annotation in {file} is of {kind} {shown(str(odd))}, which the file does "
                    "not list. Export it again."
                )
            if any(annotation.get(key) for key in _REGION):
                regions += 1
                if self.context.rules.boxes != "labels":
                    continue
            labels[number].add(categories[category])
        if regions and self.context.rules.boxes == "ask" and self.context.needs_labels:
            raise DataError(
                f"{regions:,} of {len(content['annotations']):,} annotations in {file} are boxes "
                f"or other regions. Set {BOXES}."
            )
        images = [ToolImage(name, tuple(sorted(labels[number]))) for number, name in names.items()]
        return _Export(images, _meant(content["categories"], categories, labels), regions)

    def _top(self) -> Path:
        if self.context.path is None:
            raise DataError("data.path is missing. Name the JSON file.")
        top = Path(self.context.path).expanduser()
        if not top.exists():
            raise DataError(f"There is no file or folder {top}. Check the path.")
        return top.resolve()


def _categories(given: list[Any], file: Path) -> dict[Any, str]:
    categories: dict[Any, str] = {}
    for each in given:
        category = checked(each, dict, "A category", file)
        number = _identity(category.get("id"), "A category", file)
        if number in categories:
            raise DataError(f"Two categories in {file} have the id {number}. Export it again.")
        categories[number] = checked(
            category.get("name"), str, f"'name' of category {shown(str(number))}", file
        )
    return categories


def _meant(given: list[Any], categories: dict[Any, str], labels: dict[Any, set[str]]) -> list[str]:
    """Return the names of the categories, but not one that Roboflow adds above all others."""
    above = {str(each.get("supercategory")) for each in given}
    used = {label for each in labels.values() for label in each}
    return [name for name in categories.values() if name in used or name not in above]


def _identity(value: Any, what: str, file: Path) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(
            f"{what} in {file} has the id {shown(json.dumps(value, default=str)[:60])}, but it has "
            "to be a number. Export it again."
        )
    return value


def _image_folder(file: Path) -> Path:
    """Return the folder of the images: that of the file, or the one around `annotations`."""
    folder = file.parent
    return folder.parent if folder.name.lower() == "annotations" else folder


def _write_example(folder: Path) -> str:
    """Write six small images and a COCO file of two labels; return the file."""
    from PIL import Image

    (folder / "images").mkdir()
    images, annotations = [], []
    for number in range(6):
        name = f"{number}.png"
        label = number % 2
        Image.new("RGB", (24, 16), (60 + 140 * label, 80, 30 * number)).save(
            folder / "images" / name
        )
        images.append({"id": number, "file_name": name, "width": 24, "height": 16})
        annotations.append({"id": number, "image_id": number, "category_id": label})
    categories = [{"id": 0, "name": "dark"}, {"id": 1, "name": "light"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    file = folder / "example.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return str(file)


plugin = DataSourcePlugin(
    summary="COCO JSON: images with the categories of their annotations",
    paper="arXiv:1405.0312",
    config_class=CocoConfig,
    build=Coco,
    example=_write_example,
)
