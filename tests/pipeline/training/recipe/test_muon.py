"""Muon against torch's own, against AdamW, and against the singular value decomposition."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.training.recipe.muon import Muon


def _muon(parameter: nn.Parameter, *, matrices: bool = True, decay: float = 0.1) -> Muon:
    group = {"params": [parameter], "matrices": matrices}
    return Muon([group], lr=0.01, momentum=0.9, betas=(0.8, 0.95), weight_decay=decay)


def test_matrices_move_as_under_torchs_muon() -> None:
    """Ten steps on the same gradients end where torch's own ends, up to its bfloat16."""
    torch.manual_seed(0)
    start = torch.randn(12, 30)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = _muon(ours)
    reference = torch.optim.Muon(
        [theirs], lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(10):
        gradient = torch.randn(12, 30)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    moved, expected = ours.detach() - start, theirs.detach() - start
    assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.999
    assert (moved - expected).norm() / expected.norm() < 0.03


def test_a_convolution_moves_as_the_matrix_of_its_kernels() -> None:
    """The same numbers as a matrix and as kernels make the same step, in either memory format."""
    torch.manual_seed(0)
    kernels = torch.randn(8, 4, 3, 3)
    gradient = torch.randn(8, 4, 3, 3)
    results = []
    for values, change in (
        (kernels.flatten(1), gradient.flatten(1)),
        (kernels, gradient),
        (kernels.contiguous(memory_format=torch.channels_last), gradient),
    ):
        parameter = nn.Parameter(values.clone(memory_format=torch.preserve_format))
        parameter.grad = change.clone()
        _muon(parameter, decay=0.0).step()
        results.append(parameter.detach().reshape(8, -1))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-6, rtol=0)


def test_every_other_parameter_moves_as_under_adamw() -> None:
    """Groups without matrices take exactly torch's AdamW steps."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(7))
    theirs = nn.Parameter(ours.detach().clone())
    mine = _muon(ours, matrices=False)
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(7)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    assert torch.equal(ours, theirs)
