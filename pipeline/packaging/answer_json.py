"""What the JSON of an answer holds: of the server, of predictions, of MLflow and of every form.

Inlined into every package, so it needs only numpy.

Shapes: K classes or labels, L blocks; h, w the grid of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from patchline.pipeline.packaging.answer_judge import AnswerJudge, JudgedImage


class AnswerJson(TypedDict, total=False):
    """The answer to one image, as JSON values.

    What comes from the probabilities is `verdict`, what says how far to trust it `reliability`. An
    image that cannot be read has every key, without values, and `error`.
    """

    label: str | None
    """The most probable class; with sets of labels, the first of `labels`."""
    probability: float | None
    """Calibrated probability of the label, from 0 to 1."""
    labels: list[dict[str, Any]]
    """Labels at or above their thresholds, the most probable first; only with sets of labels."""
    top_k: list[dict[str, Any]]
    """The most probable classes, each with `label` and `probability`; labels also `threshold`."""
    set: list[str] | None
    """Classes of which one is the true one, at the rate of `coverage`; None if that is unknown."""
    coverage: float | None
    """Nominal coverage of the set."""
    set_unknown: str | None
    """Why there is no set."""
    warnings: list[dict[str, str]]
    """Warnings, each with `kind` and `message`."""
    unchecked: list[str]
    """Kinds of warnings that the package has no limit for: their absence means nothing."""
    map: dict[str, Any] | None
    """Map of where the model looked, with `rows`, `columns` and `values`; only where it is asked
    for."""
    outputs: Any
    """Probabilities (K) and features (D); inside a server only, never sent."""
    features: list[float] | None
    """Features of the image; an encoder's answer has only this and `error`."""
    error: str | None
    """Why the image cannot be read."""


class AnswerWriter:
    """Writes the answers of one package.

    Args:
        classes: names of the classes, in the order of the outputs.
        thresholds_K: threshold of each label (K); None for a model that gives each image one label.
        judge: the judge that says how reliable an answer is.
    """

    def __init__(
        self,
        classes: list[str],
        thresholds_K: np.ndarray[Any, Any] | None,
        judge: AnswerJudge,
    ) -> None:
        self.classes = classes
        self.thresholds_K = thresholds_K
        self.judge = judge

    def verdict(self, row_K: np.ndarray[Any, Any], top_k: int) -> AnswerJson:
        """Return what comes from the probabilities of one image (K)."""
        if self.thresholds_K is not None:
            return label_answer(row_K, self.thresholds_K, self.classes, top_k)
        ranked = self.ranked(row_K, top_k)
        first = ranked[0]
        return {"label": first["label"], "probability": first["probability"], "top_k": ranked}

    def ranked(self, row_K: np.ndarray[Any, Any], top_k: int) -> list[dict[str, Any]]:
        """Return the most probable classes of one image, each with `label` and `probability`."""
        best = np.argsort(-row_K, kind="stable")[: max(1, top_k)]
        return [{"label": self.classes[k], "probability": float(row_K[k])} for k in best]

    def reliability(self, said: JudgedImage) -> AnswerJson:
        """Return what says how far to trust an answer."""
        inside = said.members
        return {
            "set": None if inside is None else [self.classes[k] for k in inside],
            "coverage": said.coverage,
            "set_unknown": said.unknown or None,
            "warnings": [{"kind": kind, "message": message} for kind, message in said.warnings],
            "unchecked": self.judge.unchecked,
        }

    def unreadable(self, reason: str, coverage: float | None, *, with_map: bool) -> AnswerJson:
        """Return the answer for an image that cannot be read."""
        answer: AnswerJson = {"label": None, "probability": None}
        if self.thresholds_K is not None:
            answer["labels"] = []
        said = JudgedImage(None, self.judge.threshold(coverage)[1], reason, ())
        answer = {**answer, "top_k": [], **self.reliability(said)}
        if with_map:
            answer["map"] = None
        return {**answer, "error": reason}


def label_answer(
    row_K: np.ndarray[Any, Any],
    thresholds_K: np.ndarray[Any, Any],
    labels: Sequence[str],
    top_k: int,
) -> AnswerJson:
    """Return what a multi-label model says about an image.

    `labels` holds those at or above their thresholds, the most probable first; `label` and
    `probability` are the first of them, None if there is none; `top_k` has the most probable
    labels, chosen or not, each with its threshold.
    """
    ranked = np.argsort(-row_K, kind="stable")
    listed = [
        {
            "label": labels[k],
            "probability": float(row_K[k]),
            "threshold": float(thresholds_K[k]),
        }
        for k in ranked
    ]
    chosen = [
        {"label": labels[k], "probability": float(row_K[k])}
        for k in ranked
        if row_K[k] >= thresholds_K[k]
    ]
    first = chosen[0] if chosen else {"label": None, "probability": None}
    return {
        "label": first["label"],
        "probability": first["probability"],
        "labels": chosen,
        "top_k": listed[: max(1, top_k)],
    }


def attention_map(attention_Lhw: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return where the model looked: the mean over the blocks, as shares that sum to 1."""
    mean_hw = attention_Lhw.mean(axis=0, dtype=np.float64)
    rows, columns = mean_hw.shape
    shares_hw = mean_hw / max(float(mean_hw.sum()), 1e-12)
    return {"rows": rows, "columns": columns, "values": shares_hw.round(6).tolist()}
