"""Whether a model's outputs have drifted: a Kolmogorov-Smirnov test of each, with Bonferroni.

Rabanser, Günnemann and Lipton, Failing loudly: an empirical study of methods for detecting dataset
shift (arXiv 1810.11953), section 3 (BBSDs): univariate tests of the outputs of a classifier that is
there anyway were the best of the methods compared.

Shapes: M reference images, N images, K outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_SMALLEST_P = 5e-324


class OutputTest(NamedTuple):
    """The test of all outputs."""

    p_value: float
    """Corrected for the number of outputs."""
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
        sorted_MK: outputs of the reference, each sorted.
        outputs_NK: new ones, in any order.
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
