"""What the attention of a whole model says: its rollout and how far it reaches.

Shapes: L layers, A attention heads, N tokens, n patches among them, P tokens before the patches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

Array = np.ndarray[Any, Any]


def rollout(attention_LANN: Array) -> Array:
    """Return how much of each input token reaches each output token (arXiv 2005.00928, section 3).

    The heads of a layer are averaged; the identity is added for the residual connection, and the
    rows are divided by their sum; the layers are multiplied. Row i belongs to output token i and
    sums to 1: (N, N).
    """
    tokens = attention_LANN.shape[-1]
    flow_NN = np.eye(tokens, dtype=np.float64)
    for weights_NN in attention_LANN.mean(axis=1, dtype=np.float64):
        mixed_NN = weights_NN + np.eye(tokens)
        flow_NN = mixed_NN / mixed_NN.sum(axis=1, keepdims=True) @ flow_NN
    return flow_NN


def mean_distances(attention_LANN: Array, grid: tuple[int, int]) -> Array:
    """Return how far each head looks on average, in patches (arXiv 2010.11929, appendix D.7).

    The distance from a patch to every patch is averaged with the attention weights, then over the
    patches. Tokens before the patches have no place and are left out: (L, A).
    """
    rows, columns = grid
    first = attention_LANN.shape[-1] - rows * columns
    y, x = np.divmod(np.arange(rows * columns), columns)
    distances_nn = np.hypot(y[:, None] - y, x[:, None] - x)
    between_LAnn = attention_LANN[:, :, first:, first:]
    totals_LAn = between_LAnn.sum(axis=-1, dtype=np.float64)
    reached_LAn = (between_LAnn * distances_nn).sum(axis=-1)
    distances_LA: Array = (reached_LAn / np.maximum(totals_LAn, 1e-12)).mean(axis=-1)
    return distances_LA


def most_selective_head(weights_AN: Array) -> int:
    """Return the head whose weights are the furthest from uniform, by their entropy."""
    entropy_A = -(weights_AN * np.log(np.maximum(weights_AN, 1e-12))).sum(axis=1)
    return int(entropy_A.argmin())


def rank_correlation(first: Array, second: Array) -> float | None:
    """Return Spearman's rank correlation of two maps; None if one of them is constant."""
    ranks = pd.DataFrame([first.ravel(), second.ravel()]).rank(axis=1).to_numpy()
    if np.ptp(ranks, axis=1).min() == 0:
        return None
    return float(np.corrcoef(ranks)[0, 1])
