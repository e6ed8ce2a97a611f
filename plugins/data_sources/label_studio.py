"""Label Studio's JSON export: tasks with an image and the annotations of people.

Choices are labels of their image. What rectangles and other regions mean for it is a question,
which `data.boxes` answers. A task that nobody has annotated is left out; one that was annotated
with no choice has no label. Images are found below `data.root`; nothing is fetched. The format:
https://labelstud.io/guide/export#Label-Studio-JSON-format-of-annotated-tasks
"""

from __future__ import annotations

import json
from collections import Counter
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
)
from patchline.plugins.data_sources.cell_text import joined, shown
from patchline.plugins.data_sources.named_images import find_images, image_root
from patchline.plugins.data_sources.tool_labels import (
    BOXES,
    MalformedError,
    ToolImage,
    check_malformed,
    checked,
    json_of,
    tool_listing,
)

_REGIONS = frozenset({
    "rectanglelabels", "ellipselabels", "polygonlabels", "brushlabels", "keypointlabels",
    "bitmasklabels", "vectorlabels", "labels",
})  # fmt: skip
_CHOICES, _TAXONOMY = "choices", "taxonomy"
_NO_LABEL = "has no label"


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


class LabelStudio:
    """List the images of the tasks with the choices of their annotations."""

    def __init__(self, config: LabelStudioConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return the images; raise `DataError` if the export cannot be used."""
        file = self._file()
        tasks = checked(json_of(file), list, "The content", file)
        if not tasks:
            raise DataError(f"{file} holds no tasks. Export it again.")
        key = self._image_key(tasks, file)
        images: list[ToolImage] = []
        left_out: list[LeftOutFile] = []
        malformed: dict[int, str] = {}
        answers: list[list[list[_Answer]]] = []
        for number, task in enumerate(tasks, start=1):
            try:
                answers.append(_answers(task, file))
            except MalformedError as error:
                answers.append([])
                malformed[number] = f"{error.reason} (task {shown(str(task.get('id', number)))})"
        check_malformed(file, list(malformed.values()), len(tasks), "tasks")
        notes = self._check([each for all_ in answers for some in all_ for each in some], file)
        for number, (task, answered) in enumerate(zip(tasks, answers, strict=True), start=1):
            name = task["data"].get(key)
            if not isinstance(name, str) or not name.strip():
                left_out.append(LeftOutFile(f"task {number}", "the row names no image"))
                continue
            if number in malformed and self.context.needs_labels:
                left_out.append(LeftOutFile(name, malformed[number]))
                continue
            sets = {self._labels(some) for some in answered}
            if len(sets) > 1 and self.context.needs_labels:
                one, other = sorted(sets)[:2]
                reason = f"has two labels in the export, {joined(one)} and {joined(other)}"
                left_out.append(LeftOutFile(name, reason))
            elif sets or not self.context.needs_labels:
                images.append(ToolImage(name, next(iter(sets), ())))
            else:
                left_out.append(LeftOutFile(name, _NO_LABEL, "foreign"))
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
            if (chosen is None or each.control == chosen)
            and (not each.is_region or self.context.rules.boxes == "labels")
        ]
        return tuple(sorted({label for each in used for label in each.labels}))

    def _check(self, answers: list[_Answer], file: Path) -> list[str]:
        """Ask what is not clear: regions, and several controls."""
        if not self.context.needs_labels:
            return []
        boxes, chosen = self.context.rules.boxes, self.config.label_column
        controls = Counter(each.control for each in answers)
        if chosen is not None and chosen not in controls:
            raise DataError(
                f"data.label_column is '{shown(chosen)}', but {file} has answers of the controls "
                f"{joined(sorted(controls))}. Choose one of them."
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
                f"The tasks in {file} have answers of the controls {joined(sorted(used))}. Set "
                "--data.label-column to the one whose answers are the labels."
            )
        if not regions:
            return []
        what = "their labels are" if boxes == "labels" else "none is"
        return [f"{file.name}: {regions:,} answers are regions; {what} used (data.boxes {boxes})"]

    def _image_key(self, tasks: list[Any], file: Path) -> str:
        """Return the name of the value that holds the image."""
        counts: Counter[str] = Counter()
        keys: dict[str, None] = {}
        for each in tasks:
            task = checked(each, dict, "A task", file)
            data = checked(task.get("data"), dict, "'data' of a task", file)
            for key, value in data.items():
                keys[key] = None
                counts[key] += isinstance(value, str) and _names_an_image(value)
        given = self.config.image_column
        if given is not None:
            if given not in keys:
                raise DataError(
                    f"data.image_column is '{shown(given)}', but the tasks in {file} have "
                    f"{joined(list(keys))}. Choose one of them."
                )
            return given
        named = [key for key in keys if counts[key]]
        usual = [key for key in named or keys if key.lower() in ("image", "img", "photo")]
        best = usual or named
        if len(best) != 1:
            raise DataError(
                f"It is not obvious which value of the tasks in {file} names the images: "
                f"{joined(list(keys))}. Set --data.image-column."
            )
        return best[0]

    def _file(self) -> Path:
        if self.context.path is None:
            raise DataError("data.path is missing. Name the JSON file.")
        file = Path(self.context.path).expanduser()
        if not file.is_file():
            raise DataError(f"There is no file {file}. Check the path.")
        return file.resolve()


def _names_an_image(value: str) -> bool:
    path = value.partition("?d=")[2] or value.partition("?")[0]
    return PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES


def _answers(task: Any, file: Path) -> list[list[_Answer]]:
    """Return the answers of each annotation that was not skipped."""
    annotations = task.get("annotations", task.get("completions", []))
    found = []
    for each in checked(annotations, list, "'annotations' of a task", file):
        annotation = checked(each, dict, "An annotation", file)
        if annotation.get("was_cancelled"):
            continue
        results = checked(annotation.get("result", []), list, "'result' of an annotation", file)
        some = [_answer(checked(result, dict, "A result", file), file) for result in results]
        found.append([answer for answer in some if answer is not None])
    return found


def _answer(result: dict[str, Any], file: Path) -> _Answer | None:
    """Return what a result says; None for texts, ratings and relations."""
    kind = result.get("type")
    if kind not in (_CHOICES, _TAXONOMY, *_REGIONS):
        return None
    value = checked(result.get("value"), dict, "'value' of a result", file)
    labels = checked(value.get(kind, []), list, f"'{kind}' of a result", file)
    if kind == _TAXONOMY:
        labels = [each[-1] if isinstance(each, list) and each else each for each in labels]
    for each in labels:
        checked(each, str, f"A label in '{kind}'", file)
    return _Answer(str(result.get("from_name", "")), kind in _REGIONS, tuple(labels))


def _write_example(folder: Path) -> str:
    """Write six small images and an export with two choices; return the file."""
    from PIL import Image

    tasks = []
    for number in range(6):
        name = f"{number:08x}-{number}.png"
        label = ("dark", "light")[number % 2]
        Image.new("RGB", (24, 16), (60 + 140 * (number % 2), 80, 30 * number)).save(folder / name)
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
