"""Explain one or two images with a trained model: read, trace, attribute, and write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decoded
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
from patchline.pipeline.evaluation.visual_guide.guide_page import render_guide
from patchline.pipeline.evaluation.visual_guide.patch_projection import projection_of
from patchline.pipeline.evaluation.visual_guide.pictures import picture
from patchline.pipeline.evaluation.visual_guide.story import Subject, given_labels
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels, trace
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.atomic_files import write_text

Progress = Callable[[str, int, int], None]


class ImageToExplain(NamedTuple):
    """An image, as its file holds it and as it enters the model."""

    name: str
    original: Pixels
    """Upright, uint8 (H, W, C)."""
    pixels: Pixels
    """Resized for the model."""
    label: str | None
    """Its true label, if that is known; with a multi-label model, the label to explain."""


class ModelAnswer(NamedTuple):
    """What the model answered for an image."""

    image: str
    label: str | None
    """Of a multi-label model, the most probable one that is given; None if there is none."""
    probability: float | None
    true_label: str | None
    labels: tuple[dict[str, Any], ...] | None = None
    """Of a multi-label model: those that are given, each with `label` and `probability`."""
    explained: str | None = None
    """Of a multi-label model: the label that the page explains."""


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
            decoded(data, spec.channels, jpeg_decoder=decode_jpeg, mapping=mapping) as original,
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
        folder: holds `model.safetensors` and `model.json`.
        images: files, each with its true label if that is known.
        out: the page to write.
        model_name: as the page calls the model.
        occlusion: cover parts of the image to measure what the answer depends on.
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
    given = given_labels(description, traced.probabilities_K)
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
