"""A device whose results arrive late, as those of a GPU do."""

from __future__ import annotations

import torch

from patchline.pipeline.models.inference import Transfers


class LateTransfers(Transfers):
    """Copies to the host hold nan until `wait`; counts how many were not yet waited for."""

    most_unfinished = 0

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor without the values."""
        late = torch.full_like(values, torch.nan)
        self._late.append((late, values))
        LateTransfers.most_unfinished = max(self.most_unfinished, len(self._late))
        return late

    def wait(self) -> None:
        """Let the values of all tensors arrive."""
        for late, values in self._late:
            late.copy_(values)
        self._late.clear()
