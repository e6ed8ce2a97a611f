"""A training step asks nothing of its device that would wait, or that some devices lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from patchline.pipeline.config import RunConfig
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.speed.trial_steps import trial_steps
from patchline.plugin_api import ImageSpec

IMAGE = ImageSpec(channels=3, height=16, width=16, mean=(0.5,) * 3, std=(0.5,) * 3, resize="crop")
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
EVERYTHING = RunConfig.model_validate(
    {
        "augmentation": {"name": "standard"},
        "optimizer": {"name": "adamw"},
        "model": {"name": "vit", "stochastic_depth": 0.2, "patch_dropout": 0.3, "dropout": 0.1},
        "training": {"mixup": 0.5, "cutmix": 1.0, "accumulation": 2, "class_weights": "balanced"},
    }
)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Records the names and the results' types of all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(str(getattr(func, "_schema", func)).partition("(")[0].partition(".")[0])
        found = (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        self.types.update(leaf.dtype for leaf in found)
        return result


def _with_sets() -> RunConfig:
    training = EVERYTHING.training.model_copy(update={"loss": "asymmetric"})
    data = EVERYTHING.data.model_copy(update={"task": "multi_label"})
    return EVERYTHING.model_copy(update={"training": training, "data": data})


@pytest.mark.parametrize("config", [EVERYTHING, _with_sets()], ids=["one label", "sets"])
def test_a_step_reads_no_value_and_computes_nothing_in_float64(config: RunConfig) -> None:
    """Reading a value would wait for a GPU in each step, and MPS has no float64."""
    model = build_model(config.model, IMAGE, 3)
    steps = trial_steps(config, IMAGE, 3, model, "float32", 6)
    next(steps)
    with _Operations() as seen:
        for _ in range(4):  # MixUp and CutMix
            next(steps)
    assert "aten::_fused_adamw_" in seen.names
    assert not seen.names & WAITING
    assert torch.float64 not in seen.types
    with _Operations() as seen:
        torch.ones(1).double().item()
    assert seen.names & WAITING
    assert torch.float64 in seen.types
