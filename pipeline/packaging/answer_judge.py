"""How reliable an answer is: a set of classes that holds the true one, warnings, thresholds.

Sets and warnings follow the rules of `patchline.pipeline.models.model_description`, which a package
holds as JSON, to one batch. Inlined into every package, so it needs only numpy and OpenCV.

Shapes: B images, H, W and C of an image, K classes or labels, D features, L blocks; h, w the grid
of patches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from patchline.pipeline.data.reading.image_quality import (
    BLANK,
    BLURRED,
    DARK,
    ImageQuality,
    QualityLimits,
    fault_of,
    quality_of,
)
from patchline.pipeline.evaluation.metrics.conformal import set_members
from patchline.pipeline.evaluation.metrics.feature_distance import Neighbours

SETS_ARE_FOR_ONE_LABEL = "prediction sets are for models with one label for each image"
"""Why an answer of a multi-label model has no prediction set."""


def thresholds_of(description: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """Return the threshold of each label (K), from `model.json`.

    Returns:
        None for a model with one label for each image.

    Raises:
        ValueError: if a multi-label model lacks them.
    """
    if description.get("task") != "multi_label":
        return None
    values = (description.get("thresholds") or {}).get("values", ())
    if len(values) != len(description["classes"]):
        raise ValueError("a multi-label model needs a threshold for each label")
    return np.asarray(values, np.float64)


TOO_SMALL, FAR = "too_small", "far"
WARNINGS = (BLANK, DARK, BLURRED, TOO_SMALL, FAR)
"""All kinds of warnings."""
_PACKAGED_BEFORE = "the package is older than prediction sets: train and register the model again"
_SLACK = 1 - 1e-5
"""A package's probabilities differ from the reported ones in the last digits."""


class SizedPixels(np.ndarray[Any, Any]):
    """An image as the network takes it, uint8 (H, W, C), with the size that it had before."""

    original: tuple[int, int] | None = None
    """Height and width in pixels; None if they are not known."""

    @classmethod
    def of(cls, pixels_HWC: np.ndarray[Any, Any], original: tuple[int, ...]) -> Self:
        """Return the image with its size."""
        sized = pixels_HWC.view(cls)
        sized.original = (int(original[0]), int(original[1]))
        return sized


class JudgedImage(NamedTuple):
    """What is said about one image besides its probabilities."""

    members: tuple[int, ...] | None
    """The classes of its set, the most probable first; None if the set is not known."""
    coverage: float | None
    """Nominal coverage of the sets; None if there is no set and none was asked."""
    unknown: str
    """Why there is no set."""
    warnings: tuple[tuple[str, str], ...]
    """Kind and message of each warning."""


class AnswerJudge:
    """Applies the rules of a package.

    Args:
        rules: the package's rules, as in `model.json`; None for a package that has none.
        reference_file: the file with the reference features and k; it need not exist.
        classes: names of the classes, in the order of the outputs.
        no_sets: why the model has no prediction sets; empty if it may have them.
    """

    def __init__(
        self,
        rules: dict[str, Any] | None,
        reference_file: Path,
        classes: list[str],
        no_sets: str = "",
    ) -> None:
        self.rules = rules
        self.classes = classes
        self.no_sets = no_sets
        self._neighbours: Neighbours | None = None
        if rules and rules.get("far") is not None and reference_file.is_file():
            with np.load(reference_file, allow_pickle=False) as stored:
                self._neighbours = Neighbours(stored["reference"], int(stored["nearest"]))

    @property
    def needs_features(self) -> bool:
        """Whether the model's features are needed for the warnings."""
        return self._neighbours is not None

    @property
    def unchecked(self) -> list[str]:
        """Kinds of warnings that the package has no limit for: their absence means nothing."""
        if self.rules is None:
            return list(WARNINGS)
        far = self.rules.get("far") if self.needs_features else None
        limits = {
            **{kind: self.rules.get(kind) for kind in ("dark", "blurred")},
            TOO_SMALL: self.rules.get("least_side"),
            FAR: far,
        }
        return [kind for kind, limit in limits.items() if limit is None]

    def threshold(
        self, coverage: float | None = None
    ) -> tuple[np.ndarray[Any, Any] | None, float | None, str]:
        """Return the least probabilities of members, the sets' coverage, and why it is None.

        The coverage is the next one that the package has a threshold for.
        """
        if self.no_sets:
            return None, None, self.no_sets
        if self.rules is None:
            return None, coverage, _PACKAGED_BEFORE
        wanted = self.rules["coverage"] if coverage is None else coverage
        if not 0 < wanted < 1:
            return None, wanted, f"a coverage of {wanted:g} is not between 0 and 1"
        for each in self.rules["thresholds"]:
            if each["coverage"] >= wanted - 1e-9:
                least = each["by_class"] or each["least_probability"]
                array = None if least is None else np.asarray(least, np.float64)
                return array, each["coverage"], each["unknown"]
        known = ", ".join(f"{each['coverage']:g}" for each in self.rules["thresholds"])
        return None, wanted, f"the package has thresholds for the coverages {known}"

    def judge(
        self,
        pixels: list[np.ndarray[Any, Any]],
        probabilities_BK: np.ndarray[Any, Any],
        features_BD: np.ndarray[Any, Any] | None,
        coverage: float | None = None,
    ) -> list[JudgedImage]:
        """Return what to say about each image of a batch."""
        least, promised, unknown = self.threshold(coverage)
        members: list[tuple[int, ...] | None] = [None] * len(pixels)
        if least is not None:
            inside_BK = set_members(probabilities_BK, least * _SLACK)
            ranked_BK = np.argsort(-probabilities_BK, axis=1, kind="stable")
            members = [
                tuple(int(k) for k in order_K if inside_K[k])
                for order_K, inside_K in zip(ranked_BK, inside_BK, strict=True)
            ]
        warnings = self._warnings(pixels, features_BD)
        return [
            JudgedImage(inside, promised, "" if inside is not None else unknown, said)
            for inside, said in zip(members, warnings, strict=True)
        ]

    def distances(self, features_BD: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return the distance (B) of each image to the reference; None if there is none."""
        return self._neighbours.distances(features_BD) if self._neighbours else None

    def _warnings(
        self, pixels: list[np.ndarray[Any, Any]], features_BD: np.ndarray[Any, Any] | None
    ) -> list[tuple[tuple[str, str], ...]]:
        rules = self.rules
        if rules is None:
            return [()] * len(pixels)
        far: list[float | None] = [None] * len(pixels)
        distances = None if features_BD is None else self.distances(features_BD)
        if distances is not None:
            far = distances.tolist()
        return [
            tuple(image_warnings(rules, image, distance))
            for image, distance in zip(pixels, far, strict=True)
        ]


def image_warnings(
    rules: dict[str, Any], pixels_HWC: np.ndarray[Any, Any], distance: float | None
) -> list[tuple[str, str]]:
    """Return kind and message of each warning about one image.

    Args:
        rules: the rules of the package.
        pixels_HWC: the image as the network takes it; with its original size if that is known.
        distance: distance to the reference features; None if it is not known.
    """
    said = []
    quality = quality_of(np.asarray(pixels_HWC))
    fault = fault_of(quality, QualityLimits(rules["dark"], rules["blurred"]))
    if fault:
        said.append((fault, _fault_message(fault, quality, rules)))
    original, least = getattr(pixels_HWC, "original", None), rules["least_side"]
    if original is not None and least is not None and min(original) < least:
        height, width = original
        said.append(
            (
                TOO_SMALL,
                (
                    f"the image is only {width}x{height} pixels: with less than {least:g} on its "
                    "shorter side it shows less than the images that the model was tested on"
                ),
            )
        )
    if distance is not None and rules["far"] is not None and distance > rules["far"]:
        share = 1 - rules["false_alarms"]
        said.append(
            (
                FAR,
                (
                    "the image is far from everything that the model has seen: its features are "
                    f"at a distance of {distance:.3g}, where {share:.0%} of new images like those "
                    f"it was tested on are within {rules['far']:.3g}"
                ),
            )
        )
    return said


def _fault_message(fault: str, quality: ImageQuality, rules: dict[str, Any]) -> str:
    if fault == BLANK:
        return "the image shows a single colour"
    if fault == DARK:
        return (
            f"the image is dark: 99% of its pixels are at most {quality.brightest:.0f} of 255, "
            f"below {rules['dark']:g}"
        )
    return (
        f"the image is blurred: its sharpest part has a sharpness of {quality.sharpness:.2g}, "
        f"below {rules['blurred']:.2g}, a third of what is usual for the model's images or less"
    )
