"""Dynamic loss scaling for float16 (arXiv 1710.03740, section 3.2).

Small gradients would be rounded to zero in float16, so the loss is multiplied by a large factor
first. If a gradient overflows, the update is left out and the factor halved; after many updates
without overflow it is doubled, as in `torch.amp.GradScaler`. That class expects an update after
every gradient, but one can be computed again: after a divergence, in smaller micro-batches, or to
try a compiled model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_FIRST, _SMALLEST = 2.0**16, 1.0
_CHANGE = 2.0
_UPDATES = 2000
"""Without overflow, after which the factor grows."""


class LossScale:
    """The factor of the loss of a training run.

    Args:
        precision: of the run; without float16, the factor is 1 and nothing is done.
    """

    def __init__(self, precision: str = "float32") -> None:
        self._is_on = precision == "float16"
        self.factor = _FIRST if self._is_on else 1.0
        self._updates = 0
        self._overflows: torch.Tensor | None = None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the factor."""
        return loss * self.factor if self._is_on else loss

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients of parameters by the factor."""
        if self._is_on:
            gradients = [each.grad for each in parameters if each.grad is not None]
            torch._foreach_mul_(gradients, 1 / self.factor)

    def tolerated(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the norm of the gradients, or 0 if they overflow and a smaller factor may help."""
        if not self._is_on:
            return norm
        self._overflows = ~norm.isfinite()
        if self.factor <= _SMALLEST:
            return norm
        return torch.where(self._overflows, torch.zeros_like(norm), norm)

    def admits_update(self) -> bool:
        """Return whether no gradient overflows, and adapt the factor for the next step."""
        if self._overflows is not None and bool(self._overflows):
            self.factor, self._updates = max(_SMALLEST, self.factor / _CHANGE), 0
            return False
        self._updates += 1
        if self._is_on and self._updates == _UPDATES:
            self.factor, self._updates = self.factor * _CHANGE, 0
        return True

    def numbers(self) -> dict[str, float]:
        """Return the state."""
        return {"factor": self.factor, "updates": self._updates}

    def restore(self, numbers: dict[str, float]) -> None:
        """Restore a state that `numbers` has returned."""
        self.factor, self._updates = numbers["factor"], int(numbers["updates"])
        self._overflows = None
