"""How repeatably a training computes."""

from __future__ import annotations

import torch

from patchline.pipeline.training.device import make_repeatable


def test_threads_are_set_and_reported() -> None:
    """A number of threads is set; without one torch's own stays; both are reported."""
    assert make_repeatable(1) == 1 == torch.get_num_threads()
    assert make_repeatable(None) == 1
    assert torch.are_deterministic_algorithms_enabled()
