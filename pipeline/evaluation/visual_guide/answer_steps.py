"""The end of the guide: from the last block to the answer, and what the answer depends on."""

from __future__ import annotations

import math

import numpy as np
import torch

from patchline.pipeline.evaluation.visual_guide.attention_steps import token_map
from patchline.pipeline.evaluation.visual_guide.pictures import Picture, picture
from patchline.pipeline.evaluation.visual_guide.story import (
    Array,
    Bar,
    Bars,
    Chart,
    Figure,
    Step,
    Subject,
    line,
    percent,
    ranked,
    shape_of,
)
from patchline.pipeline.models.layers.pooling import (
    AttentionPooling,
    AveragePooling,
    ClassTokenPooling,
    SequencePooling,
)

_SHOWN_CLASSES = 5
_POOLINGS = (ClassTokenPooling, AveragePooling, SequencePooling, AttentionPooling)


def answer_steps(subject: Subject) -> list[Step]:
    """Return the steps from the last block to the answer."""
    return [_journey(subject), answer_step(subject)]


def _journey(subject: Subject) -> Step:
    readouts_LK = subject.inside.readouts_LK
    if readouts_LK is None:
        return subject.step("journey", applies=False)
    classes = subject.description.classes
    best = ranked(readouts_LK[-1])[:_SHOWN_CLASSES]
    true = subject.true_label
    if true is not None and true not in best:
        best[-1] = true
    lines = tuple(line(classes[k], readouts_LK[:, k]) for k in best)
    leads = readouts_LK.argmax(axis=1).tolist()
    settled = max((i + 1 for i, lead in enumerate(leads) if lead != leads[-1]), default=0) + 1
    return subject.step(
        "journey",
        (
            Chart(
                "Probability of the "
                f"{'labels' if subject.description.is_multi_label else 'classes'} if the model "
                "ended after each block",
                "; ".join(f"{each.name}: {percent(each.points[-1][1])}" for each in lines),
                lines,
                1.0,
                "after block",
                percent=True,
            ),
        ),
        (shape_of("probabilities", readouts_LK, "L × classes"),),
        leads=leads,
        settled=settled,
    )


def answer_step(subject: Subject) -> Step:
    """Return the step about the answer; it suits every model."""
    traced, classes = subject.traced, subject.description.classes
    best = ranked(traced.probabilities_K)[:_SHOWN_CLASSES]
    true = subject.true_label
    is_multi_label = subject.description.is_multi_label
    for shown in (*subject.labels, subject.attributions.label if is_multi_label else true):
        if shown is not None and shown not in best:
            best.append(shown)
    bars = Bars(
        "The most probable labels, the given ones marked: probability, and logit in brackets"
        if is_multi_label
        else "The most probable classes: probability, and logit in brackets",
        tuple(
            Bar(
                classes[k] + (" (true label)" if k == true else ""),
                float(traced.probabilities_K[k]),
                f"{percent(traced.probabilities_K[k])} ({traced.logits_K[k]:.2f})",
                marked=k in subject.labels if is_multi_label else k == true,
            )
            for k in best
        ),
    )
    figures, pooling = _pooled(subject) if traced.transformer else ([], "")
    return subject.step(
        "answer",
        (*figures, bars),
        (
            shape_of("logits", traced.logits_K, "classes"),
            shape_of("probabilities", traced.probabilities_K, "classes"),
        ),
        pooling=pooling,
        is_scaled=not math.isclose(subject.description.temperature, 1.0),
    )


def _pooled(subject: Subject) -> tuple[list[Figure], str]:
    """Return the figure of the pooling, if there is one, and the pooling's name if it is known."""
    pooling = getattr(subject.model, "pooling", None)
    name = next((kind.__name__ for kind in _POOLINGS if isinstance(pooling, kind)), "")
    normed_ND, pooled_D = subject.part("norm"), subject.part("pooling")
    if not name or normed_ND is None:
        return [], ""
    if isinstance(pooling, SequencePooling):
        with torch.inference_mode():
            weights_N = torch.softmax(pooling.importance(torch.from_numpy(normed_ND)), dim=0)[:, 0]
        shown = picture(
            token_map(subject, weights_N.numpy()),
            "overlay",
            "How much each token counts in the pooled vector",
            "Weights of the pooling",
        )
        return [shown], name
    if pooled_D is None:
        return [], name
    alt = f"The {len(pooled_D)} numbers that the head reads"
    return [picture(pooled_D[None], "strip", alt, "What the head reads, y")], name


# -- what the answer depends on --------------------------------------------------------------------


def attribution_step(subject: Subject) -> Step:
    """Return the step about the cross-entropy, its gradient, and covering parts of the image."""
    attributions = subject.attributions
    probability = float(subject.traced.probabilities_K[attributions.label])
    rows, columns = attributions.grid
    worst = None
    figures: list[Figure] = [
        _signed(
            attributions.gradient_hw,
            f"Predicted rise of the cross-entropy for each of {rows} by {columns} parts",
            "Predicted by the gradient",
        )
    ]
    if attributions.occlusion_hw is not None:
        worst = np.unravel_index(
            int(attributions.occlusion_hw.argmax()), attributions.occlusion_hw.shape
        )
        figures.append(
            _signed(
                attributions.occlusion_hw,
                f"Measured rise of the cross-entropy for each of {rows} by {columns} parts",
                "Measured by covering",
            )
        )
    return subject.step(
        "attribution",
        figures,
        (
            shape_of("gradient", subject.traced.input_CHW, "C × H × W"),
            shape_of("map", attributions.gradient_hw, "parts"),
        ),
        loss=-math.log(max(probability, 1e-45)),
        worst=worst,
    )


def _signed(values_hw: Array, alt: str, caption: str) -> Picture:
    return picture(
        values_hw,
        "signed",
        f"{alt}, from {values_hw.min():.3f} to {values_hw.max():.3f}",
        f"{caption}; strongest colour: {np.abs(values_hw).max():.3g}",
    )
