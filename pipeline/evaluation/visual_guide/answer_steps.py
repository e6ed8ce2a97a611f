"""The end of the guide: from the last block to the answer, and what the answer depends on."""

from __future__ import annotations

import math

import numpy as np
import torch

from patchline.pipeline.evaluation.visual_guide.attention_steps import overlay, token_map
from patchline.pipeline.evaluation.visual_guide.pictures import (
    Picture,
    matrix_uri,
    signed_overlay_uri,
)
from patchline.pipeline.evaluation.visual_guide.story import (
    Array,
    Bar,
    Bars,
    Chart,
    ChartLine,
    Figure,
    Step,
    Subject,
    shape_of,
)
from patchline.pipeline.models.layers.pooling import (
    AttentionPooling,
    AveragePooling,
    ClassTokenPooling,
    SequencePooling,
)

_SHOWN_CLASSES = 5
_CLOSE, _APART = 0.5, 0.2
_POOLINGS: dict[type[torch.nn.Module], str] = {
    ClassTokenPooling: "The last norm is applied, and the class token is taken; the patches have "
    "done their work.",
    AveragePooling: "The last norm is applied, and the patches' tokens are averaged into one.",
    SequencePooling: "The last norm is applied, and the tokens are averaged with learned weights: "
    "the map shows how much each counts.",
    AttentionPooling: "The last norm is applied, and one more attention with a learned query "
    "gathers the tokens into one.",
}


def answer_steps(subject: Subject) -> list[Step]:
    """Return the steps from the last block to the answer."""
    return [_journey(subject), answer_step(subject)]


def percent(probability: float) -> str:
    """Return a probability in percent; only exact 0 and 1 become 0% and 100%."""
    text = f"{100 * float(probability):.2f}"
    if text == "100.00" and probability < 1:
        return ">99.99%"
    return "<0.01%" if text == "0.00" and probability > 0 else f"{text}%"


def _journey(subject: Subject) -> Step:
    readouts_LK = subject.inside.readouts_LK
    if readouts_LK is None:
        return Step(
            "journey",
            "The answer cannot be read before the end",
            ("This model's last layers do not work on the tokens of an earlier block.",),
            applies=False,
        )
    classes = subject.description.classes
    best = [int(k) for k in np.argsort(-readouts_LK[-1], kind="stable")[:_SHOWN_CLASSES]]
    true = subject.true_label
    if true is not None and true not in best:
        best[-1] = true
    lines = tuple(
        ChartLine(
            classes[k], tuple((float(i + 1), float(p)) for i, p in enumerate(readouts_LK[:, k]))
        )
        for k in best
    )
    is_multi_label = subject.description.is_multi_label
    if is_multi_label and subject.attributions.label not in best:
        best[-1] = subject.attributions.label
    whose = "class token" if "class token" in subject.inside.prefix else "answer"
    leading = "is the most probable label" if is_multi_label else "leads"
    leads = [classes[int(k)] for k in readouts_LK.argmax(axis=1)]
    settled = max((i + 1 for i, lead in enumerate(leads) if lead != leads[-1]), default=0) + 1
    return Step(
        "journey",
        f"The {whose}'s journey",
        (
            (
                "What if the model stopped early? After each block, the final norm and head are "
                "applied to the tokens as they are. Only the last block was trained to be read "
                "so, but the earlier ones show when the answer forms."
            ),
            f"“{leads[-1]}” {leading} from block {settled} on."
            if settled > 1
            else f"“{leads[-1]}” {leading} from the first block on.",
        ),
        (
            Chart(
                f"Probability of the {'labels' if is_multi_label else 'classes'} if the model "
                "ended after each block",
                "; ".join(f"{line.name}: {percent(line.points[-1][1])}" for line in lines),
                lines,
                1.0,
                "after block",
                percent=True,
            ),
        ),
        (shape_of("probabilities", readouts_LK, "L × classes"),),
    )


def answer_step(subject: Subject) -> Step:
    """Return the step about the answer; it suits every model."""
    traced, classes = subject.traced, subject.description.classes
    best = [int(k) for k in np.argsort(-traced.probabilities_K, kind="stable")[:_SHOWN_CLASSES]]
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
                f"{percent(float(traced.probabilities_K[k]))} ({traced.logits_K[k]:.2f})",
                marked=k in subject.labels if is_multi_label else k == true,
            )
            for k in best
        ),
    )
    sentences = [*(_sigmoids(subject) if is_multi_label else _softmax(subject)), _verdict(subject)]
    figures: list[Figure] = [bars]
    shapes = [
        shape_of("logits", traced.logits_K, "classes"),
        shape_of("probabilities", traced.probabilities_K, "classes"),
    ]
    if traced.transformer is not None:
        figures, pooled = _pooled(subject, figures)
        sentences = [pooled, *sentences] if pooled else sentences
    return Step(
        "answer",
        "The answer",
        tuple(sentences),
        tuple(figures),
        tuple(shapes),
        equation=subject.equation(4) if traced.transformer is not None else 0,
    )


def _softmax(subject: Subject) -> list[str]:
    """Return how logits become probabilities of classes of which an image has one."""
    sentences = [
        (
            "The head multiplies the vector with one learned row for each of the "
            f"{len(subject.description.classes)} classes, which gives a logit each. Softmax turns "
            "the logits into probabilities that sum to 1."
        )
    ]
    description = subject.description
    temperature, calibration = description.temperature, description.calibration
    bias = calibration.bias if calibration else ()
    if not math.isclose(temperature, 1.0):
        sentences.append(
            f"Before the softmax, the logits are divided by the temperature {temperature:.2f}, "
            "which was fitted on the validation images."
        )
    if bias:
        least = int(np.argmin(bias))
        sentences.append(
            "Each gets a bias, because the training counted all classes equally: that of "
            f"“{description.classes[least]}” is {bias[least]:.2f}, the largest is 0."
        )
    return sentences


def _sigmoids(subject: Subject) -> list[str]:
    """Return how logits become probabilities of labels of which an image has any number."""
    description, label = subject.description, subject.attributions.label
    name, fits = description.classes[label], description.label_calibration
    sentences = [
        (
            "The head multiplies the vector with one learned row for each of the "
            f"{len(description.classes)} labels, which gives a logit each. A sigmoid turns each "
            "logit into a probability of its own: an image may have any number of labels, so the "
            "probabilities do not sum to 1."
        )
    ]
    if fits is not None and fits.determined[label]:
        sentences.append(
            f"Before the sigmoid, each logit is scaled and shifted so that the probability is "
            f"calibrated: that of “{name}” becomes {fits.scales[label]:.2f} times the logit, "
            f"{'plus' if fits.shifts[label] >= 0 else 'minus'} {abs(fits.shifts[label]):.2f}."
        )
    else:
        sentences.append(f"Too few images told how to calibrate “{name}”.")
    if description.thresholds is not None:
        sentences.append(
            f"A label is given from its own threshold on, “{name}” from "
            f"{percent(description.thresholds.values[label])}."
        )
    return sentences


def _verdict(subject: Subject) -> str:
    traced, classes = subject.traced, subject.description.classes
    if subject.description.is_multi_label:
        given = [f"“{classes[k]}” ({percent(float(traced.probabilities_K[k]))})"
                 for k in subject.labels]  # fmt: skip
        if not given:
            return "The model gives this image no label: every probability is below its threshold."
        number = "label" if len(given) == 1 else "labels"
        return f"The model gives this image {len(given)} {number}: {', '.join(given)}."
    probability = percent(float(traced.probabilities_K[traced.predicted]))
    if subject.true_label is None:
        return f"The model answers “{subject.predicted}” with a probability of {probability}."
    if subject.true_label == traced.predicted:
        return f"The model answers “{subject.predicted}” ({probability}), which is right."
    own = percent(float(traced.probabilities_K[subject.true_label]))
    return (
        f"The model answers “{subject.predicted}” ({probability}), which is wrong: the true label "
        f"“{classes[subject.true_label]}” got {own}."
    )


def _pooled(subject: Subject, figures: list[Figure]) -> tuple[list[Figure], str]:
    """Return the figures with that of the pooling, and a sentence about it."""
    pooling = getattr(subject.model, "pooling", None)
    kind = next((kind for kind in _POOLINGS if isinstance(pooling, kind)), None)
    normed_ND = subject.part("norm")
    if kind is None or normed_ND is None:
        return figures, ""
    sentence = _POOLINGS[kind]
    if getattr(subject.model, "test_time_flip", False):
        sentence += (
            " The same was done with the mirror image, and the head reads the average of the two "
            "vectors."
        )
    if isinstance(pooling, SequencePooling):
        with torch.inference_mode():
            weights_N = torch.softmax(pooling.importance(torch.from_numpy(normed_ND)), dim=0)[:, 0]
        shown = overlay(
            token_map(subject, weights_N.numpy()),
            "How much each token counts in the pooled vector",
            "Weights of the pooling",
        )
        return [shown, *figures], sentence
    pooled_D = subject.part("pooling")
    if pooled_D is None:
        return figures, sentence
    vector: Array = pooled_D[None]
    strip = Picture(
        matrix_uri(vector),
        f"The {vector.shape[1]} numbers that the head reads",
        "What the head reads, y",
        display="strip",
        width=vector.shape[1],
    )
    return [strip, *figures], sentence


# -- what the answer depends on --------------------------------------------------------------------


def attribution_step(subject: Subject) -> Step:
    """Return the step about the cross-entropy, its gradient, and covering parts of the image."""
    attributions = subject.attributions
    classes = subject.description.classes
    probability = float(subject.traced.probabilities_K[attributions.label])
    rows, columns = attributions.grid
    name = classes[attributions.label]
    lowered = (
        "Training lowers the cross-entropy of each label: minus the logarithm of its probability "
        "for an image that has it."
        if subject.description.is_multi_label
        else "Training lowers the cross-entropy: minus the logarithm of the true label's "
        "probability."
    )
    sentences = [
        (
            f"{lowered} For “{name}” it is −ln {probability:.4f} = "
            f"{-math.log(max(probability, 1e-45)):.4f} here."
        ),
        (
            "Its gradient says how it would change with each pixel. Multiplied with the pixel, it "
            "predicts what happens if a part of the image is covered with the mean colour: orange "
            "would harm the answer, blue would help it."
        ),
    ]
    figures: list[Figure] = [
        _signed(
            attributions.gradient_hw,
            f"Predicted rise of the cross-entropy for each of {rows} by {columns} parts",
            "Predicted by the gradient",
        )
    ]
    if attributions.occlusion_hw is None or attributions.probabilities_hw is None:
        sentences.append("Covering the parts one by one was left out, so this is not checked.")
    else:
        worst = np.unravel_index(
            int(attributions.occlusion_hw.argmax()), attributions.occlusion_hw.shape
        )
        sentences += [
            (
                f"So each of {rows} × {columns} parts was covered in turn, and the model asked "
                f"again ({attributions.seconds:.1f} s). Covering row {worst[0] + 1}, column "
                f"{worst[1] + 1} harms most: the probability of “{name}” goes from "
                f"{percent(probability)} to {percent(float(attributions.probabilities_hw[worst]))}."
            ),
            _agreement(attributions.agreement),
        ]
        figures.append(
            _signed(
                attributions.occlusion_hw,
                f"Measured rise of the cross-entropy for each of {rows} by {columns} parts",
                "Measured by covering",
            )
        )
    return Step(
        "attribution",
        "Which patches would change the answer?",
        tuple(sentences),
        tuple(figures),
        (
            shape_of("gradient", subject.traced.input_CHW, "C × H × W"),
            shape_of("map", attributions.gradient_hw, "parts"),
        ),
    )


def _signed(values_hw: Array, alt: str, caption: str) -> Picture:
    height, width = values_hw.shape
    limit = float(np.abs(values_hw).max())
    return Picture(
        signed_overlay_uri(values_hw),
        f"{alt}, from {values_hw.min():.3f} to {values_hw.max():.3f}",
        f"{caption}; strongest colour: {limit:.3g}",
        "signed",
        width,
        height,
    )


def _agreement(correlation: float | None) -> str:
    if correlation is None:
        return "One of the maps is the same everywhere, so they cannot be compared."
    judged = (
        "they largely agree"
        if correlation >= _CLOSE
        else "they agree in part"
        if correlation >= _APART
        else "they do not agree, so trust what was measured"
    )
    return (
        f"The rank correlation of prediction and measurement is {correlation:.2f} (1: same order, "
        f"0: unrelated): {judged}."
    )
