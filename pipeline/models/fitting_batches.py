"""Smaller batches when the memory of the device is short.

Predictions and features are computed in batches that are halved until they fit. In training, the
gradients of a batch are divided into micro-batches, after what the failed step began is undone:
`patchline.pipeline.training.faults.out_of_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

Result = TypeVar("Result")


def fitting_batches(
    count: int, batch_size: int, compute: Callable[[slice], Result]
) -> Iterator[tuple[int, Result]]:
    """Compute in batches; one that does not fit is halved, and so are the next ones.

    Args:
        count: of the rows.
        batch_size: rows of a batch, while they fit.
        compute: computes the rows of a slice.

    Yields:
        The number of rows that are done, and the result of the latest batch.

    Raises:
        torch.OutOfMemoryError: if a single row does not fit.
    """
    done = 0
    while done < count:
        stop = min(done + batch_size, count)
        try:
            result = compute(slice(done, stop))
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
            batch_size = max(1, min(batch_size, count - done) // 2)
            continue
        done = stop
        yield done, result
