"""The settings of a run that starts from trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.initial_weights.record import InitialWeights
from patchline.pipeline.training.initial_weights.starting_point import (
    check_divisible,
    with_initial_weights,
    without_initial_weights,
)

FOUND = InitialWeights(
    reference="/somewhere/tower.safetensors",
    kind="file",
    sha256="0" * 64,
    layout="some ViT",
    settings={
        "name": "vit_registers",
        "embed_dim": 48,
        "depth": 3,
        "num_heads": 4,
        "mlp_dim": 96,
        "num_registers": 2,
        "patch_embedding": {"name": "conv", "patch_size": 8},
    },
    channels=3,
    image_size=32,
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.2, 0.2),
    grid=(4, 4),
)
FILE = "tower.safetensors"


def asked(preset: str = "none", **sections: Any) -> RunConfig:
    """Return the config of a run with initial weights and some flags."""
    flags = config_files.merge_settings({"model": {"init": FILE}}, sections)
    return config_files.build_config(None, preset_name=preset, flags=flags)


def test_model_and_images_follow_the_weights() -> None:
    """The plugin, its dimensions, the image size and the normalization are those of the weights.

    What is left open follows too, also in a plan; what the user sets stays.
    """
    config = with_initial_weights(asked(), FOUND)
    assert config.model.name == "vit_registers"
    settings = config.model.settings
    assert (settings["embed_dim"], settings["depth"], settings["num_registers"]) == (48, 3, 2)
    assert config.model.patch_embedding.settings["patch_size"] == 8
    assert (config.data.image_size, config.data.channels) == (32, 3)
    assert (config.data.mean, config.data.std) == (FOUND.mean, FOUND.std)
    assert (config.model.init, config.record.init_sha256) == (FOUND.reference, FOUND.sha256)
    assert config.training.trainable == "head"
    assert with_initial_weights(config, FOUND) == config
    opened = asked(model={"patch_embedding": {"name": "auto"}, "depth": None})
    assert with_initial_weights(opened, FOUND).model == config.model
    own = asked(
        model={"patch_embedding": {"patch_size": 4}}, data={"image_size": 64, "channels": 1}
    )
    kept = with_initial_weights(own, FOUND)
    assert kept.model.patch_embedding.settings["patch_size"] == 4
    assert kept.data.image_size == 64
    assert kept.data.mean == pytest.approx((0.5,))
    planned = with_initial_weights(asked("quick"), FOUND)
    assert planned.preset is not None
    assert {"model.embed_dim", "data.image_size"} <= set(planned.preset.keep)
    assert planned.training.trainable is None  # planned with the images and the time


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"depth": 12}, "model.depth is 12, but model.init tower.safetensors has 3"),
        ({"name": "vit"}, "model.name is vit, but model.init tower.safetensors has vit_registers"),
        ({"size": "micro"}, "model.size is micro, but model.init tower.safetensors decides it"),
    ],
)
def test_a_contradiction_is_refused(flags: dict[str, Any], words: str) -> None:
    """A dimension that the weights do not have is an error that names both."""
    with pytest.raises(ConfigError, match=words):
        with_initial_weights(asked(model=flags), FOUND)
    with pytest.raises(ConfigError, match="takes images with 4 channels"):
        with_initial_weights(asked(), FOUND.model_copy(update={"channels": 4}))


def test_a_model_of_which_the_head_was_trained_trains_its_head_again() -> None:
    """All weights of a large frozen network would take hours; a plan decides with the time."""
    version = FOUND.model_copy(update={"kind": "version", "reference": "flowers/1"})
    frozen = version.model_copy(update={"head_only": True})
    model = {"init": "flowers/1"}

    def trainable(found: InitialWeights, preset: str = "none", **training: str) -> str | None:
        config = with_initial_weights(asked(preset, model=model, training=training), found)
        return config.training.trainable

    assert trainable(version) == trainable(version, "quick") == "all"
    assert trainable(frozen) == "head"
    assert trainable(frozen, "quick") is None
    assert trainable(frozen, trainable="all") == "all"

    every = asked(model=model, training={"trainable": "all", "epochs": 20})
    slow = with_initial_weights(every, frozen)
    assert (slow.optimizer.learning_rate, slow.optimizer.layer_decay) == (1e-4, 0.75)
    assert (slow.training.epochs, slow.training.batch_size) == (20, 32)  # 20 is the user's
    assert with_initial_weights(slow, frozen) == slow
    assert with_initial_weights(every, version).optimizer.learning_rate == 1e-3


def test_the_recipe_depends_on_what_is_trained() -> None:
    """Weights of other data train the head, or all slowly; those of earlier data train shortly."""
    assert asked().training.trainable == "head"
    pupil = asked(training={"teacher": "flowers@champion"})
    taught = with_initial_weights(pupil, FOUND).training
    assert (taught.trainable, taught.epochs) == ("all", 10)  # a head has no use for a teacher
    everything = asked(training={"trainable": "all"})
    assert (everything.optimizer.learning_rate, everything.optimizer.layer_decay) == (1e-4, 0.75)
    assert everything.training.epochs == 10
    flags = {"model": {"init": "flowers@champion"}}
    warm = config_files.build_config(None, preset_name="none", flags=flags)
    assert (warm.optimizer.learning_rate, warm.training.epochs) == (1e-3, 20)


def test_pretraining_continues_with_all_weights() -> None:
    """Without labels there is no head to train, and the recipe is that of a warm start."""
    config = asked(objective={"name": "mae"})
    assert with_initial_weights(config, FOUND).training.trainable == "all"
    with pytest.raises(ConfigError, match=r"trainable is head, but objective\.name mae"):
        asked(objective={"name": "mae"}, training={"trainable": "head"})


def test_without_a_champion_training_is_as_usual() -> None:
    """The first run of a schedule has the usual rate and length, but for what was set."""
    flags: dict[str, Any] = {"model": {"init": "champion"}, "optimizer": {"weight_decay": 0.2}}
    config = without_initial_weights(
        config_files.build_config(None, preset_name="none", flags=flags)
    )
    usual = RunConfig()
    assert config.model.init is None
    assert config.optimizer.learning_rate == usual.optimizer.learning_rate
    assert config.training.epochs == usual.training.epochs
    assert config.optimizer.weight_decay == 0.2
    config = config_files.build_config(
        None, preset_name="quick", flags={**flags, "training": {"epochs": 20}}
    )
    assert without_initial_weights(config).training.epochs == 20
    flags["training"] = {"trainable": "head"}
    with pytest.raises(ConfigError, match="has no champion yet whose head"):
        without_initial_weights(config_files.build_config(None, flags=flags))


def test_a_recorded_digest_belongs_to_the_recorded_weights() -> None:
    """A flag that names other weights drops the digest of the file; a saved run keeps it."""
    resolved = with_initial_weights(asked(), FOUND)
    saved = resolved.model_dump(mode="json")
    assert config_files.validate_config(saved).record.init_sha256 == FOUND.sha256
    file = Path("run.yaml")
    config_files.save(resolved, file)
    same = config_files.build_config(None, file=file)
    assert same.record.init_sha256 == FOUND.sha256
    other = config_files.build_config(None, file=file, flags={"model": {"init": "other.npz"}})
    assert (other.model.init, other.record.init_sha256) == ("other.npz", None)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"trainable": "head", "folds": 5, "final_model": "ensemble"}, "a single head is fitted."),
        ({"trainable": "head_then_all", "folds": 5}, "training.trainable to head or all"),
        ({"trainable": "head_then_all", "final_model": "refit"}, "on one validation split"),
    ],
)
def test_a_head_is_not_combined_with_what_makes_no_sense(
    training: dict[str, Any], words: str
) -> None:
    """An ensemble of heads, and a comparison that is repeated, are refused."""
    with pytest.raises(ConfigError, match=words):
        asked(training=training)
    assert asked(training={"folds": 5}).training.trainable == "head"
    with pytest.raises(ConfigError, match="features would be those of random weights"):
        config_files.build_config(None, flags={"training": {"trainable": "head"}})


@pytest.mark.parametrize(("preset", "trainable"), [("quick", None), ("none", "last_blocks")])
def test_more_last_blocks_than_the_model_has_are_refused(
    trainable: str | None, preset: str
) -> None:
    """Also if the value is the default; what nobody has set follows the model.

    Where none are trained, or the depth is not known, their number has no effect.
    """
    with pytest.raises(ConfigError, match=r"last_blocks is 4, .* has 3 blocks"):
        with_initial_weights(
            asked(preset, training={"trainable": trainable, "last_blocks": 4}), FOUND
        )
    whole = asked(training={"trainable": "all", "last_blocks": 99})
    assert with_initial_weights(whole, FOUND).training.last_blocks == 99
    convolutional = FOUND.model_copy(update={"settings": {"name": "timm", "architecture": "x"}})
    assert with_initial_weights(asked(), convolutional).training.last_blocks == 4
    config = with_initial_weights(asked(preset, training={"trainable": trainable}), FOUND)
    assert config.training.last_blocks == 3
    assert with_initial_weights(config, FOUND) == config
    two = asked(preset, training={"trainable": trainable, "last_blocks": 2})
    assert with_initial_weights(two, FOUND).training.last_blocks == 2


def test_a_model_that_cannot_be_divided_is_refused_before_data_is_read() -> None:
    """Before its training begins, where only the class of the model tells."""
    settings = {"name": "torchvision", "architecture": "resnet18"}
    whole = FOUND.model_copy(update={"settings": settings, "image_size": 224, "grid": None})
    config = with_initial_weights(asked(training={"trainable": "last_blocks"}), whole)
    with pytest.raises(ConfigError, match="cannot be divided between two blocks"):
        check_divisible(config, whole)
    check_divisible(with_initial_weights(asked(), whole), whole)
