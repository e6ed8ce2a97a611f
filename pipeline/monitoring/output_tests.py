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

    distances_K = distances(reference_MK, outputs_NK)
    output = int(np.argmax(distances_K))
    p_value = float(ks_2samp(reference_MK[:, output], outputs_NK[:, output]).pvalue)
    return OutputTest(
        p_value=min(1.0, max(p_value, _SMALLEST_P) * len(distances_K)),
        statistic=float(distances_K[output]),
        output=output,
        statistics=tuple(distances_K.tolist()),
    )


def distances(reference_MK: Array, outputs_NK: Array) -> Array:
    """Return the Kolmogorov-Smirnov distance (K) of each output."""
    return np.array(
        [
            _distance(np.sort(reference_MK[:, output]), np.sort(outputs_NK[:, output]))
            for output in range(reference_MK.shape[1])
        ]
    )


def _distance(reference_M: Array, values_N: Array) -> float:
    """Return the largest difference of two empirical distribution functions, of sorted values."""
    both = np.concatenate([reference_M, values_N])
    below_reference = np.searchsorted(reference_M, both, side="right") / len(reference_M)
    below_values = np.searchsorted(values_N, both, side="right") / len(values_N)
    return float(np.abs(below_reference - below_values).max())
