"""Pooling: what is left out and refused; its parity is in `tests/plugins/test_vit_parity`."""

from __future__ import annotations

import pytest
import torch

from patchline.pipeline.layers.pooling import (
    AttentionPooling,
    AveragePooling,
)

B, N, D, H, M = 3, 7, 24, 4, 40


def _tokens() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("prefix_tokens", [0, 1, 3])
def test_the_average_leaves_out_what_stands_in_front(prefix_tokens: int) -> None:
    """Average pooling sums the patches over their number."""
    patches = _tokens()[:, prefix_tokens:]
    expected = patches.sum(dim=1) / (N - prefix_tokens)
    torch.testing.assert_close(AveragePooling(prefix_tokens)(_tokens()), expected)


def test_refuses_heads_that_do_not_divide() -> None:
    """An embedding that the heads cannot share evenly is refused with both numbers."""
    with pytest.raises(ValueError, match=r"24 .* 5"):
        AttentionPooling(D, 5, M)
