"""Layer scale multiplies each number of a branch by its own gain."""

from __future__ import annotations

import torch
from timm.layers import LayerScale as TimmLayerScale
from torch import nn

from patchline.pipeline.layers.layer_scale import LayerScale


@torch.no_grad()
def test_equals_timm() -> None:
    """From the same gains it is timm's layer scale, and it starts at the same gains."""
    ours, theirs = LayerScale(6, 1e-3), TimmLayerScale(6, 1e-3)
    branch_BND = torch.randn(2, 5, 6)
    assert torch.equal(ours.gain_D, torch.as_tensor(theirs.gamma))
    assert torch.equal(ours(branch_BND), theirs(branch_BND))
    nn.init.normal_(ours.gain_D)
    theirs.load_state_dict({"gamma": ours.gain_D})
    assert torch.equal(ours(branch_BND), theirs(branch_BND))


@torch.no_grad()
def test_every_number_has_its_own_gain() -> None:
    """A changed gain changes its number of every token and no other."""
    layer, branch_BND = LayerScale(6, 0.5), torch.ones(2, 5, 6)
    layer.gain_D[4] = 2.0
    expected = torch.full((2, 5, 6), 0.5)
    expected[:, :, 4] = 2.0
    assert torch.equal(layer(branch_BND), expected)
