"""Explain one or two images with a trained model: read, trace, attribute, and write the page.

The page is one self-contained HTML file, with its numbers for everybody to check: the class token's
rows, the scores' ranges, the probabilities and the rollout are numbers; all attention rows are
8-bit shares of their row's maximum, compressed.

Shapes: L layers, A attention heads, N tokens, Q rows that are stored, P tokens before the patches.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from torch import nn

from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import UndecodableImageError, reserve_and_decode
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attribute,
    cell_grid,
    mean_distances,
    most_selective_head,
    rollout,
)
from patchline.pipeline.evaluation.visual_guide.pictures import HEAT, SIGNED, photo_uri, picture
from patchline.pipeline.evaluation.visual_guide.steps import steps_of
from patchline.pipeline.evaluation.visual_guide.story import (
    Step,
    Subject,
    find_given_labels,
)
from patchline.pipeline.evaluation.visual_guide.traced_image import (
    Pixels,
    TracedTransformer,
    projection_of,
    trace,
)
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.templates import page_environment
from patchline.pipeline.terminal_words import few_names, visible
from patchline.pipeline.workspace.files.atomic_files import write_text

Progress = Callable[[str, int, int], None]


class ImageToExplain(NamedTuple):
    """An image, as its file holds it and as it enters the model."""

    name: str
    original: Pixels
    """The upright image, uint8 (H, W, C)."""
    pixels: Pixels
    """The image, resized for the model."""
    label: str | None
    """Its true label, if that is known; with a multi-label model, the label to explain."""


class ModelAnswer(NamedTuple):
    """What the model answered for an image."""

    image: str
    label: str | None
    """The most probable class; of a multi-label model, the most probable label that is given, or
    None if there is none."""
    probability: float | None
    true_label: str | None
    labels: tuple[dict[str, Any], ...] | None = None
    """Labels that a multi-label model gives, each with `label` and `probability`."""
    explained: str | None = None
    """Label that the page explains, of a multi-label model."""


def read_image(file: Path, description: ModelDescription, label: str | None) -> ImageToExplain:
    """Read an image file; without a label, that of its folder if it is one of the classes.

    Raises:
        DataError: if the file cannot be read as an image.
        ConfigError: if the label is none of the model's classes.
    """
    spec, classes = description.image, description.classes
    mapping = PixelMapping.of(spec.pixel_values.model_dump())
    if label is not None and label not in classes:
        raise ConfigError(
            f"--label {label} is not a class of the model. Choose one of: {few_names(classes)}."
        )
    if label is None and not description.is_multi_label and file.absolute().parent.name in classes:
        label = file.absolute().parent.name
    try:
        with (
            image_bytes(file) as data,
            reserve_and_decode(
                data, spec.channels, jpeg_decoder=decode_jpeg, mapping=mapping
            ) as original,
        ):
            pixels = resize_image(original, spec.height, spec.width, spec.resize)
            return ImageToExplain(file.name, np.array(original), np.array(pixels), label)
    except UndecodableImageError as error:
        raise DataError(f"{file}: {error}. Give the path of an image.") from error


def explain(
    folder: Path,
    images: Sequence[tuple[Path, str | None]],
    out: Path,
    model_name: str,
    *,
    occlusion: bool = True,
    on_progress: Progress | None = None,
) -> list[ModelAnswer]:
    """Write the visual guide to one image, or to two side by side.

    Args:
        folder: the folder that holds `model.safetensors` and `model.json`.
        images: files of the images, each with its true label if that is known.
        out: the page to write.
        model_name: the model's name on the page.
        occlusion: whether to cover parts of the image, to measure what the answer depends on.
        on_progress: called with what is done, how much of it, and of how much.

    Raises:
        DataError: if an image cannot be read.
        ConfigError: if a label is none of the model's classes.
    """
    model, description = load_model(folder)
    read = [read_image(file, description, label) for file, label in images]
    subjects = [
        subject_of(model, description, image, occlusion=occlusion, on_progress=on_progress)
        for image in read
    ]
    write_guide(subjects, model_name, out)
    return [
        _answer(str(file), subject, image.label)
        for subject, image, (file, _) in zip(subjects, read, images, strict=True)
    ]


def _answer(file: str, subject: Subject, label: str | None) -> ModelAnswer:
    classes, probabilities_K = subject.description.classes, subject.traced.probabilities_K
    if not subject.description.is_multi_label:
        probability = float(probabilities_K[subject.traced.predicted])
        return ModelAnswer(file, subject.predicted, probability, label)
    given = tuple(
        {"label": classes[k], "probability": float(probabilities_K[k])} for k in subject.labels
    )
    first: dict[str, Any] = given[0] if given else {"label": None, "probability": None}
    explained = classes[subject.attributions.label]
    return ModelAnswer(file, first["label"], first["probability"], None, given, explained)


def write_guide(subjects: Sequence[Subject], model_name: str, out: Path) -> None:
    """Write the page; the file is whole or absent."""
    first, *others = subjects
    subjects = [first, *(replace(each, token=first.token, head=first.head) for each in others)]
    write_text(out, render_guide(subjects, model_name))


def subject_of(
    model: nn.Module,
    description: ModelDescription,
    image: ImageToExplain,
    *,
    occlusion: bool = True,
    on_progress: Progress | None = None,
) -> Subject:
    """Compute everything that the guide shows of an image; the model is in evaluation mode."""
    traced = trace(model, description, image.pixels)
    named = None if image.label is None else description.classes.index(image.label)
    true = None if description.is_multi_label else named
    inside = traced.transformer
    given = find_given_labels(description, traced.probabilities_K)
    attributions = attribute(
        model,
        traced.input_CHW,
        (*given, traced.predicted)[0] if named is None else named,
        cell_grid(image.pixels.shape[:2], inside.grid if inside else None),
        calibration=description.logit_calibration,
        occlusion=occlusion,
        on_progress=on_progress and (lambda done, of: on_progress("Covering parts", done, of)),
    )
    height, width = image.original.shape[:2]
    photo = picture(
        image.original,
        "photo",
        f"The image {image.name}, {height} by {width} pixels",
        f"{image.name}, {height} × {width} pixels",
    )
    subject = Subject(model, description, traced, image.name, photo, true, attributions)
    return subject if inside is None else _with_inside(subject)


def _with_inside(subject: Subject) -> Subject:
    inside = subject.inside
    rows, columns = inside.grid
    middle = len(inside.prefix) + rows // 2 * columns + columns // 2
    token = 0 if "class token" in inside.prefix else middle
    attention_LANN = inside.attention()
    with torch.inference_mode():
        projection = projection_of(
            subject.model.get_submodule("patch_embedding"),
            subject.traced.input_CHW,
            inside.patch_tokens,
            inside.grid,
        )
    return replace(
        subject,
        projection=projection,
        token=token,
        head=most_selective_head(attention_LANN[0, :, token]),
        rollout_NN=rollout(attention_LANN),
        distances_LA=mean_distances(attention_LANN, inside.grid),
    )


Array = np.ndarray[Any, Any]

MOST_BYTES = 6_500_000
"""Attention values in a page, one byte each; beyond, only every s-th patch can be picked."""
_DIGITS = 6
_MOST_CLASS_VALUES = 500_000


class PackedRows(NamedTuple):
    """Rows of 8-bit values with the range of each."""

    packed: str
    """base64 of zlib: float32 minima, float32 maxima, then one byte per value."""
    shape: tuple[int, ...]


def page_data(subjects: list[Subject], steps: list[list[Step]]) -> str:
    """Return the numbers of one or two images as JSON that may stand in a script element."""
    images = [
        _image(subject, own_steps, len(subjects))
        for subject, own_steps in zip(subjects, steps, strict=True)
    ]
    text = json.dumps({"images": images}, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _image(subject: Subject, steps: list[Step], images: int) -> dict[str, Any]:
    traced = subject.traced
    data: dict[str, Any] = {
        "classes": [visible(name) for name in subject.description.classes],
        "predicted": traced.predicted,
        "true": subject.true_label,
        "probabilities": _numbers(traced.probabilities_K),
        "shapes": {
            step.key: {shape.name: list(shape.sizes) for shape in step.shapes} for step in steps
        },
    }
    if traced.transformer is None:
        return data
    inside, attention_LANN = traced.transformer, traced.transformer.attention()
    queries = queries_of(inside, images)
    data |= {
        "grid": list(inside.grid),
        "prefix": list(inside.prefix),
        "layers": len(inside.blocks),
        "heads": inside.num_heads,
        "token": subject.token,
        "head": subject.head,
        "queries": queries,
        "attention": pack(attention_LANN[:, :, queries], lowest_zero=True)._asdict(),
        "scores": pack(
            inside.blocks[0].attention.scores_BHNN[0, subject.head].numpy()[queries]
        )._asdict(),
        "rollout": _numbers(subject.rollout_row),
    }
    if inside.readouts_LK is not None:
        data["readouts"] = _numbers(inside.readouts_LK)
    if "class token" in inside.prefix and attention_LANN[:, :, 0].size <= _MOST_CLASS_VALUES:
        data["class_rows"] = _numbers(attention_LANN[:, :, 0], digits=5)
    if subject.projection is not None and subject.projection.flat_nP.numel() <= _MOST_CLASS_VALUES:
        data["flat"] = pack(subject.projection.flat_nP.numpy())._asdict()
    return data


def queries_of(inside: TracedTransformer, images: int) -> list[int]:
    """Return the tokens whose attention a page about so many images stores."""
    shape = (len(inside.blocks), inside.num_heads, inside.num_tokens, inside.num_tokens)
    return choose_stored_queries(inside.grid, len(inside.prefix), shape, MOST_BYTES // images)


def choose_stored_queries(
    grid: tuple[int, int], prefix_tokens: int, shape: tuple[int, ...], most_bytes: int
) -> list[int]:
    """Return the tokens whose rows are stored: all, or those of every s-th row and column."""
    layers, heads, tokens, _ = shape
    rows, columns = grid
    step = 1
    while True:
        first = step // 2
        patches = [
            prefix_tokens + row * columns + column
            for row in range(first, rows, step)
            for column in range(first, columns, step)
        ]
        queries = [*range(prefix_tokens), *patches]
        if layers * heads * len(queries) * tokens <= most_bytes or len(patches) <= 1:
            return queries
        step += 1


def pack(rows: Array, *, lowest_zero: bool = False) -> PackedRows:
    """Store rows as 8 bits between their minimum and maximum; 0 where a value is not finite."""
    finite = np.isfinite(rows)
    high = np.where(finite, rows, -np.inf).max(axis=-1).astype(np.float32)
    low = np.where(finite, rows, np.inf).min(axis=-1).astype(np.float32)
    if lowest_zero:
        low = np.zeros_like(high)
    span = np.maximum(high - low, 1e-12)[..., None]
    levels = np.where(finite, np.round((rows - low[..., None]) / span * 255), 0)
    content = low.tobytes() + high.tobytes() + levels.astype(np.uint8).tobytes()
    packed = base64.b64encode(zlib.compress(content, level=6)).decode()
    return PackedRows(packed, tuple(int(size) for size in rows.shape))


def _numbers(values: Array, digits: int = _DIGITS) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), digits).tolist()


def render_guide(subjects: Sequence[Subject], model_name: str) -> str:
    """Return the page about one image, or about two side by side."""
    steps = [steps_of(subject) for subject in subjects]
    inside = subjects[0].traced.transformer
    page = page_environment(__package__).get_template("explain.html.j2")
    return page.render(
        model_name=model_name,
        subjects=subjects,
        photos=[photo_uri(subject.traced.pixels) for subject in subjects],
        stored=inside and len(queries_of(inside, len(subjects))),
        steps=[_merge_steps(both) for both in zip(*steps, strict=True)],
        data=Markup(page_data(list(subjects), steps)),  # noqa: S704 - JSON with < escaped
        heat=HEAT,
        signed=SIGNED,
    )


def _merge_steps(steps: tuple[Step, ...]) -> tuple[Step, list[Step]]:
    """Return what a step says of all images at once, and what it says of each."""
    first = steps[0]
    sentences = [s for s in first.sentences if all(s in each.sentences for each in steps)]
    figures = [
        f for f in first.figures if len(steps) > 1 and all(f in each.figures for each in steps)
    ]
    columns = [
        replace(
            each,
            sentences=[s for s in each.sentences if s not in sentences],
            figures=[f for f in each.figures if f not in figures],
        )
        for each in steps
    ]
    return replace(first, sentences=sentences, figures=figures), columns
