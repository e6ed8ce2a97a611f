"""A preset and a model of ours to start from: a third of the length, the same recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.initial_weights.settings import with_initial_weights
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import DataFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.plan import plan
from patchline.pipeline.planning.warm_start import warm_start_plan
from patchline.pipeline.presets import PresetName
from patchline.pipeline.run_memory.stage_memory import StageMemory
from tests.pipeline.initial_weights.test_settings import FOUND as FROM_FILE

FOUND = FROM_FILE.model_copy(
    update={
        "reference": "photos/3",
        "kind": "version",
        "layout": "Patchline",
        "image_size": 16,
        "settings": {
            "name": "vit",
            "size": "micro",
            "embed_dim": 48,
            "depth": 2,
            "num_heads": 4,
            "mlp_dim": 96,
            "patch_embedding": {"name": "conv", "patch_size": 4},
        },
    }
)


def planned(
    photos: Path, tmp_path: Path, classes: tuple[str, ...] = ("cat",), **flags: Any
) -> tuple[Plan, RunConfig]:
    """Return the plan of a run with a preset and `--model.init photos@champion`, and its config."""
    model = {"init": "photos@champion", **flags.pop("model", {})}
    asked = requested(str(photos), preset_name="quick", flags={"model": model, **flags})
    found = FOUND.model_copy(update={"classes": classes})
    config = with_initial_weights(asked, found)
    memory = StageMemory(tmp_path / "work")
    data = ingest(asked, memory.workspace)
    speed = Measurement(speeds=(Speed(candidate="own", images_per_second=900.0),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "measured_apart", lambda *_: speed)
        made = planner.planned(config, data, memory.workspace, lambda _: None, start=found)
    return made, planner.with_plan(config, made)


def test_an_encoder_is_trained_for_the_whole_length_with_a_low_rate(
    photos: Path, tmp_path: Path
) -> None:
    """It has seen the images, but no class; and its plan is another one in the memory."""
    made, config = planned(photos, tmp_path, classes=())
    warm, _ = planned(photos, tmp_path)
    assert (config.optimizer.learning_rate, config.optimizer.name) == (1e-3, "adamw")
    assert made.reasons[0] == (
        "from an encoder: learning rate 0.001, which changes trained weights only slowly; the "
        "length is that of the preset quick"
    )
    epochs = [each.settings["training"]["epochs"] for each in (made, warm)]
    assert epochs[0] == pytest.approx(3 * epochs[1], abs=2)
    data = ingest(config, tmp_path / "work")
    keys = [
        planner.ingredients(config, data, start=FOUND.model_copy(update={"classes": classes}))
        for classes in ((), ("cat",))
    ]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("preset", ["quick", "balanced"])
@pytest.mark.parametrize("images", [300, 4_650, 40_000])
@pytest.mark.parametrize("rate", [40.0, 3_000.0])
def test_a_third_of_the_length_with_strong_augmentation(
    preset: PresetName, images: int, rate: float
) -> None:
    """Whether epochs or time limit it; the weights have seen nearly all images many times."""
    facts = PlanFacts(
        preset=preset,
        data=DataFacts(training_images=images, classes=10, median_side=32),
        speeds=(Speed(candidate="own", images_per_second=rate),),
    )
    follows = {f"model.{key}": value for key, value in FOUND.settings.items()}
    cold = plan(facts, follows, follows=True)
    made = warm_start_plan(facts, follows)
    share = seen(made, images) / seen(cold, images)
    assert 0.9 / 3 <= share <= 1.1 / 3  # long ones are rounded to whole epochs
    if rate > 40 or images < 1_000:
        assert made.settings["augmentation"]["name"] in ("trivialaugment", "randaugment")
        assert any("times more: strong augmentation" in each for each in made.reasons)


def seen(made: Plan, images: int) -> float:
    """Return how many images a planned training sees."""
    training = made.settings["training"]
    if "epochs" in training:
        return float(training["epochs"] * images)
    return float(made.settings["record"]["step_plan"][-1][2] * training["batch_size"])
