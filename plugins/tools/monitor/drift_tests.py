"""The tests of one check, of outputs and of features, with the level divided between them.

Rabanser, Günnemann and Lipton, Failing loudly: an empirical study of methods for detecting dataset
shift (arXiv 1810.11953), section 3 (BBSDs): univariate tests of the outputs of a classifier that is
there anyway were the best of the methods compared.

Gretton, Borgwardt, Rasch, Schölkopf and Smola, A kernel two-sample test (JMLR 13, 2012). The kernel
is Gaussian, with the median distance of the reference images as its width, in the form of random
Fourier features (Rahimi and Recht, 2007). So the squared discrepancy is the squared distance of the
means of two samples, each image being 256 numbers.

The p-value is that of a permutation test, whose level is exact for any number of images. A level
that many checks share is far below what a few hundred permutations reach, and hundreds of thousands
are needed only when the images differ: it stops as soon as five permutations are as extreme as what
was observed (Besag and Clifford, Sequential Monte Carlo p-values, Biometrika 78, 1991), which
without drift happens after some dozens.

Shapes: M reference images, N images, K outputs, D features, F Fourier features, B draws.

If the images of each class are like before and only the shares of the classes have changed (label
shift), the reference differs from the new images, but not once its images are drawn at the new
shares. Those are estimated from the outputs by expectation maximization: Saerens, Latinne and
Decaestecker, Adjusting the outputs of a classifier to new a priori probabilities (Neural
Computation 14, 2002), section 2.2. The true classes of the reference images are known.

Shapes: M reference images, N images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.pipeline.templates import render_markdown

Array = np.ndarray[Any, Any]
_SMALLEST_P = 5e-324


class OutputTest(NamedTuple):
    """The test of all outputs."""

    p_value: float
    """The p-value, corrected for the number of outputs."""
    statistic: float
    """The largest distance between two distribution functions, from 0 to 1."""
    output: int
    """Index of the output that has it."""
    statistics: tuple[float, ...]
    """The distance of each output."""


def compare_outputs(reference_MK: Array, outputs_NK: Array) -> OutputTest:
    """Compare the distribution of each output with that of the reference.

    All outputs have the same numbers of images, so the smallest p-value is that of the largest
    distance; it is that of `scipy.stats.ks_2samp`, exact up to 10,000 images.
    """
    from scipy.stats import ks_2samp

    distances_K = distances(np.sort(reference_MK, axis=0), outputs_NK)
    output = int(np.argmax(distances_K))
    p_value = float(ks_2samp(reference_MK[:, output], outputs_NK[:, output]).pvalue)
    return OutputTest(
        p_value=min(1.0, max(p_value, _SMALLEST_P) * len(distances_K)),
        statistic=float(distances_K[output]),
        output=output,
        statistics=tuple(distances_K.tolist()),
    )


def distances(sorted_MK: Array, outputs_NK: Array) -> Array:
    """Return the Kolmogorov-Smirnov distance (K) of each output.

    Between two new values, the distribution function of the reference only rises. So it is enough
    to compare the two at each new value, and just below it.

    Args:
        sorted_MK: outputs of the reference images (M, K), each output sorted.
        outputs_NK: outputs of the new images (N, K), in any order.
    """
    values_NK = np.sort(outputs_NK, axis=0)
    images, count = len(sorted_MK), len(values_NK)
    largest = []
    for sorted_M, values_N in zip(sorted_MK.T, values_NK.T, strict=True):
        at_N = np.searchsorted(sorted_M, values_N, side="right") / images
        below_N = np.searchsorted(sorted_M, values_N, side="left") / images
        own_at_N = np.searchsorted(values_N, values_N, side="right") / count
        own_below_N = np.searchsorted(values_N, values_N, side="left") / count
        gaps = np.abs(at_N - own_at_N).max(), np.abs(below_N - own_below_N).max()
        largest.append(float(max(gaps)))
    return np.array(largest)


_FOURIER = 256
_EXTREME = 5
"""Permutations as extreme as the observed one, after which it stops."""
_FIRST_DRAWS, _MOST_CELLS = 64, 1 << 23
_WIDTH_IMAGES = 1000
_ROUNDING = 1 - 1e-6
_SEED = 1810


class FeatureTest(NamedTuple):
    """The test of the features."""

    p_value: float
    statistic: float
    """The squared maximum mean discrepancy, biased (V-statistic)."""
    draws: int
    """Number of permutations."""
    effect: float = math.nan
    """Distance of the means of both samples in the kernel's space, in standard deviations of the
    reference there; from the unbiased estimate of the squared discrepancy, 0 where it is below."""


class FeatureKernel:
    """The kernel of a version: its width is fixed by the reference, whatever arrives.

    Args:
        reference_MD: features of the reference images.
    """

    def __init__(self, reference_MD: Array) -> None:
        generator = np.random.default_rng(_SEED)
        features = np.asarray(reference_MD, np.float32)
        self.width = _median_distance(features, generator)
        """Of the Gaussian kernel."""
        self._frequencies_DF = generator.normal(
            0, 1 / self.width, (features.shape[1], _FOURIER)
        ).astype(np.float32)
        self._phases_F = generator.uniform(0, 2 * math.pi, _FOURIER).astype(np.float32)
        self.reference_MF = self.mapped(features)
        """Fourier features of the reference."""

    def mapped(self, features_ND: Array) -> Array:
        """Return Fourier features (N, F), whose products approximate the kernel."""
        angles_NF = np.asarray(features_ND, np.float32) @ self._frequencies_DF + self._phases_F
        mapped_NF: Array = np.cos(angles_NF) * np.float32(math.sqrt(2 / _FOURIER))
        return mapped_NF

    def compare(self, features_ND: Array, level: float, seed: int) -> FeatureTest:
        """Compare features with those of the reference.

        Args:
            features_ND: features of images (N, D) that are not among the reference.
            level: the level of the test, which decides how many permutations may be needed.
            seed: the seed of the permutations.
        """
        mapped_NF = self.mapped(features_ND)
        result = permutation_test(self.reference_MF, mapped_NF, level, seed)
        effect = _standardize(result.statistic, self.reference_MF, mapped_NF)
        return result._replace(effect=effect)

    def excess(self, features_ND: Array) -> Array:
        """Return how much more each image is like these images than like the reference (N).

        It is the witness function of the discrepancy (Gretton et al., section 2.3).
        """
        mapped_NF = self.mapped(features_ND)
        excess_N: Array = mapped_NF @ (mapped_NF.mean(axis=0) - self.reference_MF.mean(axis=0))
        return excess_N


def _standardize(squared: float, reference_MF: Array, mapped_NF: Array) -> float:
    """Return the distance of two means in standard deviations of the reference.

    Each sample's mean is off by its variance over its size, by which the squared distance is too
    large (Gretton et al., section 2.2, lemma 6).
    """
    before, now = _variance(reference_MF), _variance(mapped_NF)
    unbiased = squared - before / len(reference_MF) - now / len(mapped_NF)
    return math.sqrt(max(unbiased, 0.0) / before) if before else 0.0


def _variance(mapped_NF: Array) -> float:
    """Return the mean squared distance from the mean, in all directions together."""
    return float(mapped_NF.var(axis=0, ddof=1, dtype=np.float64).sum()) if len(mapped_NF) > 1 else 0


def permutation_test(reference_MF: Array, mapped_NF: Array, level: float, seed: int) -> FeatureTest:
    """Compare the means of two samples by the squared distance, with a sequential p-value."""
    pooled = np.concatenate([reference_MF, mapped_NF])
    pooled = pooled - pooled.mean(axis=0, dtype=np.float64).astype(np.float32)
    images, count = len(pooled), len(mapped_NF)
    drawn = min(count, images - count)  # the sums of both parts differ in their sign alone
    scale = (1 / count + 1 / (images - count)) ** 2
    observed = float((pooled[images - count :].sum(axis=0, dtype=np.float64) ** 2).sum())
    most = max(math.ceil(_EXTREME / level) - 1, _EXTREME)
    extreme = draws = 0
    for squares_B in _draw_squares(pooled, drawn, most, np.random.default_rng(seed)):
        hits = np.flatnonzero(squares_B >= observed * _ROUNDING)
        if extreme + len(hits) >= _EXTREME:
            draws += int(hits[_EXTREME - extreme - 1]) + 1
            return FeatureTest(_EXTREME / draws, observed * scale, draws)
        extreme += len(hits)
        draws += len(squares_B)
    return FeatureTest((extreme + 1) / (draws + 1), observed * scale, draws)


def _draw_squares(
    pooled_NF: Array, drawn: int, most: int, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield squared lengths of the sum of randomly drawn rows, in batches that grow."""
    images = len(pooled_NF)
    largest = max(1, _MOST_CELLS // max(images, drawn * pooled_NF.shape[1]))
    done, size = 0, min(_FIRST_DRAWS, largest)
    while done < most:
        size = min(size, most - done)
        orders_BN = np.tile(np.arange(images, dtype=np.int32), (size, 1))
        rows = np.arange(size)
        for place in range(drawn):  # Fisher and Yates, of all draws at once
            chosen_B = generator.integers(place, images, size)
            taken = orders_BN[rows, chosen_B]
            orders_BN[rows, chosen_B] = orders_BN[:, place]
            orders_BN[:, place] = taken
        sums_BF = pooled_NF[orders_BN[:, :drawn]].sum(axis=1, dtype=np.float64)
        yield (sums_BF**2).sum(axis=1)
        done += size
        size = min(2 * size, largest)


def _median_distance(features_MD: Array, generator: np.random.Generator) -> float:
    """Return the median distance between two of at most 1,000 images; 1 if it is 0."""
    rows = generator.permutation(len(features_MD))[:_WIDTH_IMAGES]
    chosen = features_MD[rows].astype(np.float64)
    squares = (chosen**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * chosen @ chosen.T
    above = distances[np.triu_indices(len(chosen), 1)]
    median = float(np.sqrt(max(np.median(above), 0.0))) if len(above) else 0.0
    return median or 1.0


OUTPUTS, FEATURES = "outputs", "features"


class DriftTest(FrozenModel):
    """One test of a check."""

    p_value: float
    level: float
    """Its part of the check's level; below it, the images differ from the reference."""
    statistic: float
    """The test's statistic: for the outputs, the largest Kolmogorov-Smirnov distance; for the
    features, the squared maximum mean discrepancy."""
    method: str
    effect: float | None = None
    """How large the difference is; None in a check of an earlier Patchline."""
    effect_unit: str = ""
    """What `effect` is, in words."""

    @property
    def is_significant(self) -> bool:
        """Whether the images differ from the reference."""
        return self.p_value <= self.level


class DriftTests(FrozenModel):
    """The tests of a check, and what they say together."""

    tests: dict[str, DriftTest]
    p_value: float
    """The p-value of all tests together (Bonferroni); at most the level exactly if one test is
    significant."""
    level: float
    unknown: dict[str, str]
    """Why a test was not possible, by its name."""

    @property
    def drift(self) -> bool:
        """Whether a test is significant."""
        return any(each.is_significant for each in self.tests.values())


def fewest_images(reference: ReferenceImages, level: float, *, has_features: bool) -> int:
    """Return the smallest number of images with which a test can reach its level at all.

    That is, where all of them lie beyond all reference images: as probable without drift as one
    division of the images, or two for a test that is two-sided, among all divisions.

    Args:
        reference: the version's reference images, independent of each other.
        level: the level of a check, from 0 to 1.
        has_features: whether features can be tested, too.
    """
    share = level / 2 if has_features else level
    divisions = 1 if has_features else 2 * reference.probabilities_MK.shape[1]
    enough = (n for n in count(1) if divisions <= share * math.comb(len(reference) + n, n))
    return next(enough)


def drift_tests(
    reference: ReferenceImages,
    probabilities_NK: Array,
    features_ND: Array | None,
    level: float,
    *,
    seed: int,
    classes: Sequence[str],
    kernel: FeatureKernel | None = None,
) -> DriftTests:
    """Compare what a model computes for images with its reference.

    Args:
        reference: the version's reference images.
        probabilities_NK: probabilities of the images (N, K).
        features_ND: features of the images (N, D); None if they are not known.
        level: the level of this check, from 0 to 1.
        seed: the seed of the permutations.
        classes: names of the outputs.
        kernel: the kernel of the reference's features; by default it is made.
    """
    unknown = {}
    if not reference.has_features:
        unknown[FEATURES] = reference.why_no_features or "the version's package holds no features"
    elif features_ND is None:
        unknown[FEATURES] = "the features of these images are not known"
    share = level / (1 if unknown else 2)
    outputs = compare_outputs(
        reference.probabilities_MK.astype(np.float64),
        as_kept(probabilities_NK).astype(np.float64),
    )
    tests = {
        OUTPUTS: DriftTest(
            p_value=outputs.p_value,
            level=share,
            statistic=outputs.statistic,
            method=f"Kolmogorov-Smirnov, {probabilities_NK.shape[1]} outputs, Bonferroni",
            effect=outputs.statistic,
            effect_unit=(
                "largest difference of two distribution functions, 0 to 1; of "
                f"{classes[outputs.output]}"
            ),
        )
    }
    if not unknown and features_ND is not None:
        kernel = kernel or FeatureKernel(reference.features_MD)
        features = kernel.compare(as_kept(features_ND), share, seed)
        tests[FEATURES] = DriftTest(
            p_value=features.p_value,
            level=share,
            statistic=features.statistic,
            method=f"maximum mean discrepancy, {features.draws:,} permutations",
            effect=features.effect,
            effect_unit="distance of the means, in standard deviations of the reference",
        )
    together = min(1.0, min(each.p_value for each in tests.values()) * len(tests))
    return DriftTests(tests=tests, p_value=together, level=level, unknown=unknown)


LEVEL = 0.05
"""Of the test within classes. It decides about a sentence, not about an alarm."""
_FEWEST = 20
_ROUNDS, _TOLERANCE = 1000, 1e-6
_NAMED = 2


class ShareChange(FrozenModel):
    """The share of a class, estimated from the outputs."""

    label: str
    before: float
    now: float


class ClassShares(FrozenModel):
    """Whether new shares of the classes explain a drift."""

    changes: tuple[ShareChange, ...]
    """The change of each class's share, the largest first."""
    images: int
    """Reference images that were drawn at the new shares."""
    p_value: float | None
    """The p-value of all tests of the new images against these; None if they are too few."""

    @property
    def explains(self) -> bool | None:
        """Whether no change within the classes was found; None if it is not known."""
        return None if self.p_value is None else self.p_value > LEVEL

    def sentence(self) -> str:
        """Return what has changed: the shares of the classes, or the images within them."""
        values = {"shares": self, "named": self.changes[:_NAMED]}
        return render_markdown("class_shares.md.j2", __package__, **values)


def class_shares(
    reference: ReferenceImages,
    probabilities_NK: Array,
    features_ND: Array | None,
    classes: Sequence[str],
    *,
    seed: int,
) -> ClassShares:
    """Compare images with reference images that are drawn at the estimated shares of the classes.

    Args:
        reference: the version's reference images, each with one class.
        probabilities_NK: probabilities of the images (N, K).
        features_ND: features of the images (N, D); None if they are not known.
        classes: names of the classes.
        seed: the seed of the draw of reference images, and of the permutations.
    """
    before_K = reference.probabilities_MK.astype(np.float64).mean(axis=0)
    before_K = before_K / before_K.sum()
    now_K = _estimate(before_K, np.asarray(probabilities_NK, np.float64))
    ratio_K = np.divide(now_K, before_K, out=np.zeros_like(now_K), where=before_K > 0)
    ratio_M = ratio_K[reference.labels]
    drawn_M = np.random.default_rng(seed).random(len(reference)) * ratio_M.max() < ratio_M
    drawn = reference.of(np.flatnonzero(drawn_M))
    p_value = None
    if len(drawn) >= _FEWEST:
        p_value = drift_tests(
            drawn, as_kept(probabilities_NK), features_ND, LEVEL, seed=seed, classes=classes
        ).p_value
    order = np.argsort(-np.abs(now_K - before_K), kind="stable").tolist()
    changes = tuple(
        ShareChange(
            label=classes[place],
            before=round(float(before_K[place]), 5),
            now=round(float(now_K[place]), 5),
        )
        for place in order
    )
    return ClassShares(changes=changes, images=len(drawn), p_value=p_value)


def _estimate(before_K: Array, probabilities_NK: Array) -> Array:
    """Return the shares of the classes among images, from calibrated probabilities.

    Args:
        before_K: shares for which the probabilities hold.
        probabilities_NK: probabilities of the images (N, K).
    """
    now_K = before_K
    for _ in range(_ROUNDS):
        ratio_K = np.divide(now_K, before_K, out=np.zeros_like(now_K), where=before_K > 0)
        weighted_NK = probabilities_NK * ratio_K
        sums_N1 = weighted_NK.sum(axis=1, keepdims=True)
        next_K = (weighted_NK / np.maximum(sums_N1, 1e-300)).mean(axis=0)
        if np.abs(next_K - now_K).max() < _TOLERANCE:
            return np.asarray(next_K)
        now_K = next_K
    return np.asarray(now_K)
