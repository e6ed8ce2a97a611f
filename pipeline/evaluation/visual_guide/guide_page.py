"""Write the visual guide as one self-contained HTML file, with its numbers for everybody to check.

The class token's rows, the scores' ranges, the probabilities and the rollout are numbers; all
attention rows are 8-bit shares of their row's maximum, compressed.

Shapes: L layers, A attention heads, N tokens, Q rows that are stored, P tokens before the patches.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from patchline.pipeline.evaluation.visual_guide.pictures import HEAT, SIGNED, photo_uri
from patchline.pipeline.evaluation.visual_guide.steps import steps_of
from patchline.pipeline.evaluation.visual_guide.story import Step, Subject, template
from patchline.pipeline.evaluation.visual_guide.traced_image import TracedTransformer
from patchline.pipeline.terminal_words import visible

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
    return stored_queries(inside.grid, len(inside.prefix), shape, MOST_BYTES // images)


def stored_queries(
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
    return template("explain.html.j2").render(
        model_name=model_name,
        subjects=subjects,
        photos=[photo_uri(subject.traced.pixels) for subject in subjects],
        stored=inside and len(queries_of(inside, len(subjects))),
        steps=[_merged(both) for both in zip(*steps, strict=True)],
        data=Markup(page_data(list(subjects), steps)),  # noqa: S704 - JSON with < escaped
        heat=HEAT,
        signed=SIGNED,
    )


def _merged(steps: tuple[Step, ...]) -> tuple[Step, list[Step]]:
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
