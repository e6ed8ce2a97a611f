"""How repeatably a training computes."""

from __future__ import annotations

import torch

from patchline.pipeline.training.device import make_repeatable


def test_threads_are_set_and_reported() -> None:
    """A number of threads is set; without one torch's own stays; both are reported."""
    assert make_repeatable(1) == 1 == torch.get_num_threads()
    assert make_repeatable(None) == 1
    assert torch.are_deterministic_algorithms_enabled()


def test_new_tensors_are_not_filled() -> None:
    """Deterministic algorithms fill every empty tensor with nan unless told not to."""
    make_repeatable(None)
    torch.full((1000,), 1.0)  # its memory is what the next tensor gets
    assert not torch.empty(1000).isnan().all()
