"""A new classification head; parity of both is in `tests/plugins/test_model_parity`."""

from __future__ import annotations

import torch

from patchline.pipeline.models.layers.head import LinearHead, TanhHead


@torch.no_grad()
def test_a_new_head_prefers_no_class() -> None:
    """Before training all classes are about equally probable, whatever the features."""
    torch.manual_seed(0)
    for head in (LinearHead(96, 10), TanhHead(96, 10)):
        probabilities_BK = torch.softmax(head(torch.randn(50, 96)), dim=1)
        assert float((probabilities_BK - 0.1).abs().max()) < 0.1
