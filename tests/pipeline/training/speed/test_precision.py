"""The precision is measured once, remembered, kept by a resumed training, and in the result."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from patchline.pipeline.config import RunConfig
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.job import TrainingPart
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.parts.probe import build_frozen_network
from patchline.pipeline.training.speed import precision
from patchline.pipeline.training.speed.precision import (
    Chooser,
    Precision,
    faster,
    images_per_second,
)
from tests.pipeline.models.probing.tiny_models import image_spec
from tests.pipeline.training.trained_jobs import (
    Make,
    StoppingWriter,
    from_weights,
    opened,
    said,
    trained,
)

IMAGE = image_spec(8)
SETTINGS = {
    "model": {"name": "vit", "embed_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8},
    "training": {"batch_size": 4},
}


@pytest.fixture
def _no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be certain, whatever this machine is."""
    monkeypatch.setattr(precision, "certain_reason", lambda _: "")


def chooser(workspace: Path | None, batch: int = 4) -> Chooser:
    """Return the chooser of a tiny model."""
    changes = {"training": {"batch_size": batch, "precision": "auto"}}
    config = RunConfig.model_validate({**SETTINGS, **changes})
    return Chooser(config, IMAGE, 3, build_model(config.model, IMAGE, 3), workspace)


@pytest.mark.usefixtures("_no_table")
def test_a_frozen_model_only_predicts_while_it_is_measured(tmp_path: Path) -> None:
    """A large one would take half a minute for steps that it never does."""
    training = chooser(tmp_path)
    frozen = replace(training, model=training.model.eval(), is_frozen=True)
    before = [each.clone() for each in frozen.model.parameters()]
    modes: list[bool] = []
    frozen.model.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    assert "images/s in float32" in frozen.choose(0.01).reason
    assert modes
    assert not any(modes)
    assert all(map(torch.equal, before, frozen.model.parameters()))


@pytest.mark.usefixtures("_no_table")
def test_the_features_of_a_fold_are_float32(make: Make) -> None:
    """The config of a fold says nothing of folds; its part does."""
    job = from_weights(make, "fold", training={"precision": "auto"})
    job = job.model_copy(update={"part": TrainingPart(fold=1, folds=3)})
    found = build_frozen_network(job, StoppingWriter(job)).precision
    assert found.name == "float32"
    assert "calibration on all folds" in found.reason


@pytest.mark.parametrize("multiplies_bfloat16", [True, False])
def test_only_a_cpu_that_multiplies_bfloat16_is_measured(
    monkeypatch: pytest.MonkeyPatch, *, multiplies_bfloat16: bool
) -> None:
    """On an x86 CPU without the instructions bfloat16 is emulated, so float32 is certain."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies_bfloat16)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    reason = precision.certain_reason(torch.device("cpu"))
    assert reason == ("" if multiplies_bfloat16 else "this CPU has no bfloat16 vector instructions")


@pytest.mark.parametrize(
    ("has_bfloat16", "capability", "half"),
    [(True, (9, 0), "bfloat16"), (False, (7, 5), "float16"), (False, (6, 1), "")],
    ids=["H100", "T4", "P4"],
)
def test_a_gpu_without_bfloat16_is_measured_in_float16_if_it_has_tensor_cores(
    monkeypatch: pytest.MonkeyPatch, *, has_bfloat16: bool, capability: tuple[int, int], half: str
) -> None:
    """Older ones multiply in float32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert precision.half_precision(torch.device("cuda")) == half
    assert bool(precision.certain_reason(torch.device("cuda"))) == (not half)


@pytest.mark.parametrize(
    ("least", "fixed", "full", "half", "images", "device", "name"),
    [
        (0.0, 0.04, 0.001, 0.0005, 64, "cpu", "bfloat16"),
        (0.0, 0.04, 0.001, 0.0005, 8, "cpu", "float32"),  # the update of the weights hides it
        (0.1, 0.0, 0.004, 0.001, 256, "cpu", "float32"),  # the launch of kernels does
        (0.1, 0.0, 0.004, 0.001, 256, "cuda", "bfloat16"),
    ],
)
def test_what_each_step_costs_beside_its_images_does_not_decide(
    least: float, fixed: float, full: float, half: float, images: int, device: str, name: str
) -> None:
    """Steps grow to what the time allows; a GPU starts with more images."""

    def steps(name: str, batch: int) -> Iterator[float]:
        while True:
            yield max(least, fixed + batch * (full if name == "float32" else half))

    fewest = precision.fewest_images(torch.device(device))
    rates = images_per_second(steps, "bfloat16", images, 0.6 if least else 10.0, fewest)
    assert faster(rates).name == name


@pytest.mark.parametrize(
    ("ratio", "earlier", "name"),
    [
        (1.2, "", "bfloat16"),
        (1.1, "", "float32"),
        (1.12, "bfloat16", "bfloat16"),
        (1.2, "float32", "float32"),
        (1.3, "float32", "bfloat16"),
    ],
)
def test_bfloat16_is_chosen_only_where_it_is_clearly_faster(
    ratio: float, earlier: str, name: str
) -> None:
    """The reason names the rates, and an earlier choice changes only with clearly other ones.

    A plan that is made again would otherwise have other weights because of the load.
    """
    found = faster({"float32": 1000.0, "bfloat16": 1000.0 * ratio}, earlier)
    assert found.name == name
    assert f"1,000 images/s in float32, {1000 * ratio:,.0f} in bfloat16" in found.reason
    assert ("the earlier choice is kept" in found.reason) == (
        name == earlier and 1.05 < ratio < 1.26
    )


@pytest.mark.usefixtures("_no_table")
def test_a_measurement_is_remembered_for_model_and_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real steps are measured once; the model and the random numbers stay as they are.

    A new plan measures again, knows the earlier choice, and remembers its own.
    """
    first = chooser(tmp_path)
    weights = {name: value.clone() for name, value in first.model.state_dict().items()}
    numbers = torch.get_rng_state()
    found = first.choose(seconds=0.0)
    assert "images/s in float32" in found.reason
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(weights[k], value) for k, value in first.model.state_dict().items())
    earlier: list[str] = []

    def choice(_: object, before: str) -> Precision:
        earlier.append(before)
        return Precision(name="bfloat16", reason="measured again")

    monkeypatch.setattr(precision, "faster", choice)
    assert chooser(tmp_path).choose() == found
    for other in (
        chooser(tmp_path, batch=5),
        chooser(None),
        replace(chooser(tmp_path), again=True),
    ):
        assert other.choose(0.0).reason == "measured again"
    assert earlier == ["", "", found.name]
    assert chooser(tmp_path).choose().name == "bfloat16"


def test_a_device_with_little_memory_measures_fewer_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that does not fit is halved, and without any room the exact choice remains."""
    monkeypatch.setattr(precision, "certain_reason", lambda _: "")
    tried: list[int] = []

    def measured(_: object, __: str, most: int, *___: float) -> dict[str, float]:
        tried.append(most)
        if most > room:
            raise torch.OutOfMemoryError
        return {"float32": 10.0, "bfloat16": 20.0}

    monkeypatch.setattr(precision, "images_per_second", measured)
    room = 3
    assert chooser(None, batch=16).choose().name == "bfloat16"
    assert tried == [16, 8, 4, 2]
    room = 0
    assert "not enough memory" in chooser(None, batch=16).choose().reason


def test_a_training_keeps_its_precision_and_a_replay_has_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was chosen is said once, stands in the result, and is not chosen again on resume."""
    chosen = Precision(name="bfloat16", reason="it was the faster one")
    monkeypatch.setattr(Chooser, "choose", lambda *_: chosen)
    job = make("training", training={"epochs": 1, "precision": "auto"})
    result = trained(job)
    monkeypatch.setattr(Chooser, "choose", lambda *_: Precision(name="float32", reason="else"))
    assert opened(job).step.precision == "bfloat16"
    assert said(job, "note") == ["precision: bfloat16 (it was the faster one)"]
    replay = launching.replayable(job.config, result)
    assert (replay.training.precision, replay.training.compile) == ("bfloat16", False)
