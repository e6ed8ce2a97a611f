"""Write the visual guide as one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from patchline.pipeline.evaluation.visual_guide.answer_steps import (
    answer_step,
    answer_steps,
    attribution_step,
    percent,
)
from patchline.pipeline.evaluation.visual_guide.attention_steps import attention_steps
from patchline.pipeline.evaluation.visual_guide.depth_steps import depth_steps
from patchline.pipeline.evaluation.visual_guide.embedding_steps import (
    embedding_steps,
    example_step,
    image_step,
)
from patchline.pipeline.evaluation.visual_guide.page_data import page_data, queries_of
from patchline.pipeline.evaluation.visual_guide.page_environment import page_environment
from patchline.pipeline.evaluation.visual_guide.pictures import HEAT, SIGNED, photo_uri
from patchline.pipeline.evaluation.visual_guide.sequence_steps import sequence_steps
from patchline.pipeline.evaluation.visual_guide.story import Figure, Step, Subject


class _Column(NamedTuple):
    """What a step says about one of two images only."""

    sentences: tuple[str, ...]
    figures: tuple[Figure, ...]


def steps_of(subject: Subject) -> list[Step]:
    """Return the steps of one image, in the order of the page."""
    ends = [attribution_step(subject)]
    if subject.traced.transformer is None:
        return [example_step(subject), image_step(subject), answer_step(subject), *ends]
    return [
        example_step(subject),
        *embedding_steps(subject),
        *sequence_steps(subject),
        *attention_steps(subject),
        *depth_steps(subject),
        *answer_steps(subject),
        *ends,
    ]


def render_guide(subjects: Sequence[Subject], model_name: str, colophon: str) -> str:
    """Return the page about one image, or about two side by side."""
    steps = [steps_of(subject) for subject in subjects]
    environment = page_environment("patchline.pipeline.evaluation.visual_guide")
    environment.filters["percent"] = percent
    names = " and ".join(subject.name for subject in subjects)
    return environment.get_template("explain.html.j2").render(
        title=f"How {model_name} sees {names}",
        lead=_lead(subjects[0]),
        notes=_notes(subjects),
        subjects=[_about(subject) for subject in subjects],
        steps=[_merged(both) for both in zip(*steps, strict=True)],
        data=Markup(page_data(list(subjects), steps)),  # noqa: S704 - JSON with < escaped
        heat=Markup(json.dumps(HEAT)),  # noqa: S704 - our own numbers
        signed=Markup(json.dumps(SIGNED)),  # noqa: S704
        colophon=colophon,
    )


def _notes(subjects: Sequence[Subject]) -> list[str]:
    """Return what a reader should know before the steps."""
    traced = subjects[0].traced
    inside = traced.transformer
    if inside is None:
        return [
            f"{traced.why_closed} So this page shows the image, the answer, and what it depends on."
        ]
    stored = len(queries_of(inside, len(subjects)))
    if stored == inside.num_tokens:
        return []
    note = (
        f"To keep the file small, it holds the attention of {stored} of the {inside.num_tokens} "
        "tokens, evenly spread over the image; picking a patch shows the nearest of them."
    )
    return [note]


def _lead(subject: Subject) -> str:
    if subject.traced.transformer is None:
        return "Every picture is made of the model's own numbers for this image."
    inside = subject.traced.transformer
    rows, columns = inside.grid
    blocks, heads = len(inside.blocks), inside.num_heads
    parts = (
        f"{rows * columns} patch{'' if rows * columns == 1 else 'es'}, "
        f"{blocks} block{'' if blocks == 1 else 's'} with "
        f"{heads} attention head{'' if heads == 1 else 's'}{'' if blocks == 1 else ' each'}"
    )
    return (
        f"From pixels to the answer: {parts}. Every picture on this page is made of this "
        "model's own numbers for this image."
    )


def _about(subject: Subject) -> dict[str, Any]:
    traced, classes = subject.traced, subject.description.classes
    height, width = traced.pixels.shape[:2]
    true = subject.true_label
    return {
        "name": subject.name,
        "label": subject.predicted,
        "probability": None
        if subject.description.is_multi_label
        else float(traced.probabilities_K[traced.predicted]),
        "right": None if true is None else true == traced.predicted,
        "true_label": None if true is None else classes[true],
        "photo": Markup(photo_uri(traced.pixels)),  # noqa: S704 - base64
        "width": width,
        "height": height,
        "grid": traced.transformer.grid if traced.transformer else None,
    }


def _merged(steps: tuple[Step, ...]) -> dict[str, Any]:
    """Return one step for all images: what is the same is said once."""
    first = steps[0]
    everywhere = all if len(steps) > 1 else any
    sentences = [s for s in first.sentences if everywhere(s in each.sentences for each in steps)]
    figures = [
        f for f in first.figures if len(steps) > 1 and all(f in each.figures for each in steps)
    ]
    columns = [
        _Column(
            tuple(s for s in each.sentences if s not in sentences),
            tuple(f for f in each.figures if f not in figures),
        )
        for each in steps
    ]
    return {
        "key": first.key,
        "title": first.title,
        "sentences": sentences,
        "figures": figures,
        "shapes": first.shapes,
        "equation": first.equation,
        "applies": first.applies,
        "views": first.views,
        "columns": columns if any(c.sentences or c.figures for c in columns) else [],
    }
