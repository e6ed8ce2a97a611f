"""Label Studio's JSON export: tasks with an image and the annotations of people.

Choices are labels of their image. What rectangles and other regions mean for it is a question,
which `data.boxes` answers; a choice about a region is one. A task that nobody has annotated is left
out; one that was annotated with no choice has no label. Answers about another value of the task,
and those that a review rejects, count for nothing; where a reviewer has fixed an annotation before
accepting it, the fixed one counts. Images are found below `data.root`; nothing is fetched. The
format:
https://labelstud.io/guide/export#Label-Studio-JSON-format-of-annotated-tasks
https://api.labelstud.io/api-reference/api-reference/annotation-reviews/create
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from patchline.plugin_api import (
    IMAGE_SUFFIXES,
    DataError,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    PluginConfig,
    SourceContext,
    check_branches,
    innermost_paths,
)
from patchline.plugins.data_sources.named_images import find_images, image_root, readings
from patchline.plugins.data_sources.source_files import example_images, existing_path
from patchline.plugins.data_sources.table_formats import format_cell, join_names
from patchline.plugins.data_sources.tool_labels import (
    BOXES,
    MalformedError,
    ToolImage,
    check_malformed,
    check_type,
    json_of,
    tool_listing,
)

_REGIONS = frozenset({
    "rectanglelabels", "ellipselabels", "polygonlabels", "brushlabels", "keypointlabels",
    "bitmasklabels", "vectorlabels", "labels",
})  # fmt: skip
_CHOICES, _TAXONOMY = "choices", "taxonomy"
_NO_LABEL, _REJECTED = "has no label", "has no label that its review accepts"
_PLACES = frozenset({"x", "points", "rle", "vertices"})
"""What says where in the image a result is."""


class LabelStudioConfig(PluginConfig):
    """Which parts of the export are read."""

    image_column: str | None = None
    """Name of the task's value with the image; by default guessed."""

    label_column: str | None = None
    """Name of the control whose answers are the labels, if a task has several."""


class _Answer(NamedTuple):
    """What one result of an annotation says."""

    control: str
    is_region: bool
    labels: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    """The path of each label in a taxonomy or in nested choices, which ends with the label."""
    about: str
    """Another value of the task that it is about; empty if it is about the image."""


class LabelStudio:
    """List the images of the tasks with the choices of their annotations."""

    def __init__(self, config: LabelStudioConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return the images; raise `DataError` if the export cannot be used."""
        file = self._file()
        tasks = check_type(json_of(file), list, "The content", file)
        if not tasks:
            raise DataError(f"{file} holds no tasks. Export it again.")
        key = self._image_key(tasks, file)
        images: list[ToolImage] = []
        left_out: list[LeftOutFile] = []
        malformed: dict[int, str] = {}
        answers: list[list[list[_Answer]]] = []
        for number, task in enumerate(tasks, start=1):
            try:
                answers.append(_answers(task, key, file))
            except MalformedError as error:
                answers.append([])
                malformed[number] = (
                    f"{error.reason} (task {format_cell(str(task.get('id', number)))})"
                )
        check_malformed(file, list(malformed.values()), len(tasks), "tasks")
        notes = self._check([each for all_ in answers for some in all_ for each in some], file)
        for number, (task, answered) in enumerate(zip(tasks, answers, strict=True), start=1):
            name = task["data"].get(key)
            if not isinstance(name, str) or not name.strip():
                left_out.append(LeftOutFile(f"task {number}", "the row names no image"))
                continue
            if number in malformed and self.context.needs_labels:
                images.append(ToolImage(name, (), unknown=malformed[number]))
                continue
            sets = {self._labels(some) for some in answered}
            if len(sets) > 1 and self.context.needs_labels:
                one, other = sorted(sets)[:2]
                reason = f"has two labels in the export, {join_names(one)} and {join_names(other)}"
                images.append(ToolImage(name, (), unknown=reason))
            elif sets or not self.context.needs_labels:
                images.append(ToolImage(name, next(iter(sets), ())))
            else:
                rejected = any(map(_is_rejected, task.get("annotations", ())))
                left_out.append(LeftOutFile(name, _REJECTED if rejected else _NO_LABEL, "foreign"))
        if not images:
            raise DataError(f"{file} holds no task that is annotated. Label some images first.")
        root = image_root(file.parent, self.context.rules)
        found = find_images(
            file, [each.name for each in images], root, is_set=self.context.rules.root is not None
        )
        return tool_listing(
            file, images, found, self.context,
            how="the choices of an image's annotation are its labels", left_out=left_out,
            notes=notes,
        )  # fmt: skip

    def _labels(self, answers: list[_Answer]) -> tuple[str, ...]:
        """Return the labels that one annotation gives."""
        chosen = self.config.label_column
        used = [
            each
            for each in answers
            if not each.about
            and (chosen is None or each.control == chosen)
            and (not each.is_region or self.context.rules.boxes == "labels")
        ]
        return tuple(sorted({label for each in used for label in each.labels}))

    def _check(self, answers: list[_Answer], file: Path) -> list[str]:
        """Ask what is not clear: regions, and several controls."""
        if not self.context.needs_labels:
            return []
        boxes, chosen = self.context.rules.boxes, self.config.label_column
        others = sorted({each.about for each in answers} - {""})
        notes = [f"{file.name}: answers about {join_names(others)} are not used"] if others else []
        if others and all(each.about for each in answers):
            raise DataError(
                f"All answers in {file} are about {join_names(others)}, and none is about the "
                "image. Set --data.image-column to what the answers are about, or label the images."
            )
        answers = [each for each in answers if not each.about]
        controls = Counter(each.control for each in answers)
        if chosen is not None and chosen not in controls:
            raise DataError(
                f"data.label_column is '{format_cell(chosen)}', but {file} has answers of the "
                f"controls {join_names(sorted(controls))}. Choose one of them."
            )
        answers = [each for each in answers if chosen in (None, each.control)]
        regions = sum(each.is_region for each in answers)
        if regions and boxes == "ask":
            raise DataError(
                f"{regions:,} of {len(answers):,} answers in {file} are regions of an image. Set "
                f"{BOXES}."
            )
        used = {each.control for each in answers if not each.is_region or boxes == "labels"}
        if len(used) > 1:
            raise DataError(
                f"The tasks in {file} have answers of the controls {join_names(sorted(used))}. Set "
                "--data.label-column to the one whose answers are the labels."
            )
        paths = (path for answer in answers for path in answer.paths)
        notes += [f"{file.name}: {note}" for note in check_branches(paths, str(file))]
        if not regions:
            return notes
        what = "their labels are" if boxes == "labels" else "none is"
        note = f"{file.name}: {regions:,} answers are regions; {what} used (data.boxes {boxes})"
        return [*notes, note]

    def _image_key(self, tasks: list[Any], file: Path) -> str:
        """Return the name of the value that holds the image."""
        counts: Counter[str] = Counter()
        keys: dict[str, None] = {}
        for each in tasks:
            task = check_type(each, dict, "A task", file)
            data = check_type(task.get("data"), dict, "'data' of a task", file)
            for key, value in data.items():
                keys[key] = None
                counts[key] += isinstance(value, str) and _names_an_image(value)
        given = self.config.image_column
        if given is not None:
            if given not in keys:
                raise DataError(
                    f"data.image_column is '{format_cell(given)}', but the tasks in {file} have "
                    f"{join_names(list(keys))}. Choose one of them."
                )
            return given
        named = [key for key in keys if counts[key]]
        usual = [key for key in named or keys if key.lower() in ("image", "img", "photo")]
        best = usual or named
        if len(best) != 1:
            raise DataError(
                f"It is not obvious which value of the tasks in {file} names the images: "
                f"{join_names(list(keys))}. Set --data.image-column."
            )
        return best[0]

    def _file(self) -> Path:
        file = existing_path(self.context.path, "the JSON file", "file")
        if not file.is_file():
            raise DataError(f"There is no file {file}. Check the path.")
        return file.resolve()


def _names_an_image(value: str) -> bool:
    return any(
        PurePosixPath(each).suffix.lower() in IMAGE_SUFFIXES for each in readings(value).ends
    )


def _answers(task: Any, image: str, file: Path) -> list[list[_Answer]]:
    """Return the answers of each annotation that was neither skipped nor rejected.

    Args:
        task: a task of the export.
        image: the name of its value with the image.
        file: the export, for messages.
    """
    annotations = task.get("annotations", task.get("completions", []))
    found = []
    for each in check_type(annotations, list, "'annotations' of a task", file):
        annotation = check_type(each, dict, "An annotation", file)
        if annotation.get("was_cancelled") or _is_rejected(annotation):
            continue
        given = annotation.get("result", [])
        if (fixed := _last_review(annotation).get("fixed_annotation_history_result")) is not None:
            given = fixed
        check_type(given, list, "'result' of an annotation", file)
        results = [check_type(result, dict, "A result", file) for result in given]
        regions = {str(result.get("id")) for result in results if _is_region(result)} - {"None"}
        others = task["data"].keys() - {image}
        some = [_answer(result, regions, others, file) for result in results]
        found.append([answer for answer in some if answer is not None])
    return found


def _is_rejected(annotation: dict[str, Any]) -> bool:
    """Return whether the last review of an annotation does not accept it."""
    review = _last_review(annotation)
    return review.get("accepted", annotation.get("last_action") != "rejected") is False


def _last_review(annotation: dict[str, Any]) -> dict[str, Any]:
    """Return the last review of an annotation, which the Enterprise edition exports; or nothing."""
    reviews = annotation.get("reviews")
    said = [each for each in reviews if isinstance(each, dict)] if isinstance(reviews, list) else []
    return max(said, key=lambda each: str(each.get("created_at", "")), default={})


def _is_region(result: dict[str, Any]) -> bool:
    """Return whether a result is a place in the image, or is about one."""
    value = result.get("value")
    return result.get("type") in _REGIONS or (
        isinstance(value, dict) and bool(_PLACES & value.keys())
    )


def _answer(
    result: dict[str, Any], regions: Container[str], others: Container[str], file: Path
) -> _Answer | None:
    """Return what a result says; None for texts, ratings and relations.

    Args:
        result: a result of an annotation.
        regions: the ids of its regions.
        others: the values of the task that are not the image.
        file: the export, for messages.
    """
    kind = result.get("type")
    if kind not in (_CHOICES, _TAXONOMY, *_REGIONS):
        return None
    value = check_type(result.get("value"), dict, "'value' of a result", file)
    labels = check_type(value.get(kind, []), list, f"'{kind}' of a result", file)
    paths: tuple[tuple[str, ...], ...] = ()
    if kind == _TAXONOMY or any(isinstance(each, list) for each in labels):  # nested choices
        paths = innermost_paths(
            [tuple(each) if isinstance(each, list) and each else (each,) for each in labels]
        )
        labels = [each[-1] for each in paths]
    for each in (part for path in paths or [labels] for part in path):
        check_type(each, str, f"A label in '{kind}'", file)
    about = str(result.get("source") or result.get("to_name") or "").removeprefix("$")
    is_region = _is_region(result) or str(result.get("id")) in regions
    control = str(result.get("from_name", ""))
    return _Answer(control, is_region, tuple(labels), paths, about if about in others else "")


def _write_example(folder: Path) -> str:
    """Write six small images and an export with two choices; return the file."""
    tasks = []
    for number, (label, content) in enumerate(example_images()):
        name = f"{number:08x}-{number}.png"
        (folder / name).write_bytes(content)
        result = {"type": "choices", "from_name": "class", "value": {"choices": [label]}}
        data = {"image": f"/data/upload/1/{name}"}
        tasks.append({"id": number, "data": data, "annotations": [{"result": [result]}]})
    file = folder / "example.json"
    file.write_text(json.dumps(tasks), encoding="utf-8")
    return str(file)


plugin = DataSourcePlugin(
    summary="Label Studio's JSON export: tasks with images and choices",
    paper="",
    config_class=LabelStudioConfig,
    build=LabelStudio,
    example=_write_example,
)
