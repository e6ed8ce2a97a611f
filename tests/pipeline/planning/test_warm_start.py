"""A preset and a model of ours to start from: a third of the length, the same recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import DataFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.plan import plan
from patchline.pipeline.planning.warm_start import warm_start_plan
from patchline.pipeline.presets import PresetName
from patchline.pipeline.training.initial_weights.settings import with_initial_weights
from tests.pipeline.training.initial_weights.test_settings import FOUND as FROM_FILE

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


def test_an_encoder_is_trained_for_the_whole_length_with_a_low_rate(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the images, but no class; and its plan is another one in the memory.

    From a classifier the preset decides on a third of the length, and on the recipe.
    """
    model = {"init": "photos@champion"}
    asked = requested(str(photos), preset_name="quick", flags={"model": model})
    data = ingest(asked, tmp_path)
    speed = Measurement(speeds=(Speed(candidate="own", images_per_second=900.0),))
    monkeypatch.setattr(planner, "measured_apart", lambda *_: speed)
    made: list[Plan] = []
    configs: list[RunConfig] = []
    starts = [FOUND.model_copy(update={"classes": classes}) for classes in ((), ("cat",))]
    for found in starts:
        config = with_initial_weights(asked, found)
        made.append(planner.planned(config, data, tmp_path, lambda _: None, start=found))
        configs.append(planner.with_plan(config, made[-1]))
    encoder, warm = configs
    assert (encoder.optimizer.learning_rate, encoder.optimizer.name) == (1e-3, "adamw")
    assert (warm.optimizer.name, warm.training.trainable) == ("muon", "all")
    assert (warm.model.settings["embed_dim"], warm.data.image_size) == (48, 16)
    assert made[0].reasons[0].startswith("from an encoder: learning rate 0.001")
    assert made[1].reasons[0].startswith("warm start:")
    epochs = [each.training.epochs for each in configs]
    assert epochs[0] == pytest.approx(3 * epochs[1], abs=2)
    keys = [planner.ingredients(encoder, data, start=found) for found in starts]
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
    numbers = []
    for each in (made, cold):
        training = each.settings["training"]
        if "epochs" in training:
            numbers.append(training["epochs"] * images)
        else:
            steps = each.settings["record"]["step_plan"][-1][2]
            numbers.append(steps * training["batch_size"])
    share = numbers[0] / numbers[1]
    assert 0.9 / 3 <= share <= 1.1 / 3  # long ones are rounded to whole epochs
    if rate > 40 or images < 1_000:
        assert made.settings["augmentation"]["name"] in ("trivialaugment", "randaugment")
        assert any("times more: strong augmentation" in each for each in made.reasons)
