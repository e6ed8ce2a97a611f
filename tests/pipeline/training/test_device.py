"""How precisely and how repeatably a training computes."""

from __future__ import annotations

import pytest
import torch

from pipeline.training.config import TrainingConfig
from pipeline.training.device import choose_precision, make_repeatable

CPU = torch.device("cpu")
LARGE, SMALL = 100_000_000, 1000


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_precision_that_was_asked_for_is_taken(precision: str) -> None:
    """A choice of the user stands, whatever the hardware and the model."""
    config = TrainingConfig.model_validate({"precision": precision})
    assert choose_precision(config, CPU, SMALL) == precision
    assert choose_precision(config, CPU, LARGE) == precision


def test_auto_computes_small_models_on_a_cpu_in_float32() -> None:
    """For a small model, casting costs a CPU more than it saves."""
    assert choose_precision(TrainingConfig(), CPU, SMALL) == "float32"


@pytest.mark.parametrize("multiplies_bfloat16", [True, False])
def test_auto_casts_large_models_where_the_cpu_gains(
    monkeypatch: pytest.MonkeyPatch, *, multiplies_bfloat16: bool
) -> None:
    """A large model is computed in bfloat16 on a CPU that multiplies it, else in float32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies_bfloat16)
    expected = "bfloat16" if multiplies_bfloat16 else "float32"
    assert choose_precision(TrainingConfig(), CPU, LARGE) == expected


def test_threads_are_set_and_reported() -> None:
    """A number of threads is set; without one torch's own stays; both are reported."""
    assert make_repeatable(1) == 1 == torch.get_num_threads()
    assert make_repeatable(None) == 1
    assert torch.are_deterministic_algorithms_enabled()
