"""Batches of stored tokens."""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.token_loader import TokenImages, TrainingTokens

ROWS = np.array([0, 2, 3, 5, 7])
CPU = torch.device("cpu")


def test_tokens_loaded_ahead_are_the_same_ones() -> None:
    """Each image is shown in the view of its epoch, whether or not a thread loads the batches."""
    tokens_MVND = np.arange(5 * 3 * 4 * 2, dtype=np.float16).reshape(5, 3, 4, 2)
    source = TrainingTokens(TokenImages(tokens_MVND, ROWS, stored=8), np.arange(8) % 3, seed=1)
    order = BatchOrder(ROWS, 2, 1, 4)
    steps = 3 * order.steps_per_epoch
    alone, ahead = (
        list(islice(source.batches(order, CPU, ahead=ahead), steps)) for ahead in (False, True)
    )
    assert all(
        torch.equal(tokens, others) and torch.equal(targets, other_targets)
        for (tokens, targets), (others, other_targets) in zip(alone, ahead, strict=True)
    )
    views = torch.cat([tokens[:, 0, 0] for tokens, _ in alone])
    assert len(set(views.tolist())) == 15  # in three epochs each image has been shown in all views
