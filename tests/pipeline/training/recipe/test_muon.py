"""Muon against torch's own, against AdamW, and against the singular value decomposition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from patchline.pipeline.training.recipe.muon import Muon, orthogonalised


def _muon(parameter: nn.Parameter, *, matrices: bool = True, decay: float = 0.1) -> Muon:
    group = {"params": [parameter], "matrices": matrices}
    return Muon([group], lr=0.01, momentum=0.9, betas=(0.8, 0.95), weight_decay=decay)


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_the_update_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    """Singular values come near 1, and the singular vectors stay what they were."""
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.T @ orthogonalised(matrix[None])[0] @ right.T
    assert (values.diagonal() > 0.6).all()
    assert (values.diagonal() < 1.3).all()
    assert (values - values.diagonal().diag()).abs().max() < 1e-4


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


def test_a_restored_count_of_steps_is_where_the_kernel_of_the_next_step_needs_it() -> None:
    """Torch moves and converts it for groups that say that they are updated by a fused kernel."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = _muon(parameter, matrices=False)
    parameter.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["step"] = saved["state"][0]["step"].double()
    optimizer.load_state_dict(saved)
    assert optimizer.state[parameter]["step"].dtype == torch.float32
    assert optimizer.param_groups[0]["fused"]
