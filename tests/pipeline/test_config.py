"""The run's config: frozen, strict, and the same after every round trip."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from patchline.pipeline.config import ModelChoice, PluginChoice, RunConfig
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.training.config import OptimizerConfig, TrainingConfig, duration_seconds
from patchline.pipeline.training.record import RunRecord

configs = st.builds(
    RunConfig,
    name=st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    seed=st.integers(0, 2**32 - 1),
    data=st.builds(
        DataConfig,
        path=st.none() | st.text(max_size=20),
        image_size=st.none() | st.integers(4, 1024),
        validation_fraction=st.floats(0.01, 0.4),
        test_fraction=st.floats(0.01, 0.4),
    ),
    optimizer=st.builds(OptimizerConfig, learning_rate=st.floats(1e-9, 1)),
    training=st.builds(
        TrainingConfig,
        epochs=st.integers(1, 1000),
        time_limit=st.none() | st.sampled_from(["90s", "20m", "1.5h"]),
    ),
    record=st.builds(RunRecord, step_plan=st.none() | st.just(((0, 0.0, 80), (7, 0.25, 90)))),
)


def test_config_cannot_be_changed() -> None:
    """Neither the config nor one of its sections can be assigned to."""
    config = RunConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1  # type: ignore[misc]  # this is what must fail
    with pytest.raises(ValidationError, match="frozen"):
        config.training.epochs = 1  # type: ignore[misc]  # this is what must fail


@pytest.mark.parametrize(
    "settings",
    [
        {"sead": 1},
        {"data": {"sauce": "digits"}},
        {"training": {"epoch": 3}},
        {"optimizer": {"lr": 0.1}},
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, object]) -> None:
    """A setting that does not exist is refused, in every section."""
    with pytest.raises(ValidationError) as raised:
        RunConfig.model_validate(settings)
    assert [error["type"] for error in raised.value.errors()] == ["extra_forbidden"]


@settings(deadline=None)
@given(configs)
def test_json_gives_back_the_config(config: RunConfig) -> None:
    """A config written as JSON and read again is equal."""
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert (
        RunConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config
    )


@settings(deadline=None, max_examples=30)
@given(configs)
def test_yaml_gives_back_the_config(config: RunConfig) -> None:
    """A config written as YAML and read again is equal."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    assert RunConfig.model_validate(yaml.safe_load(text)) == config


def test_settings_of_a_plugin_survive_a_round_trip() -> None:
    """What stands beside a plugin's name is kept, though the config does not know it."""
    config = RunConfig.model_validate(
        {"model": {"name": "vit", "depth": 3, "patch_embedding": {"name": "conv", "patch_size": 4}}}
    )
    again = RunConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert again.model.settings == {"depth": 3}
    assert again.model.patch_embedding.settings == {"patch_size": 4}


def test_other_settings_replace_those_of_a_plugin() -> None:
    """`with_settings` keeps name and patch embedding, and nothing of the old settings."""
    choice = ModelChoice.model_validate({"name": "vit", "depth": 3})
    changed = choice.with_settings({"embed_dim": 8})
    assert isinstance(changed, ModelChoice)
    assert (changed.name, changed.settings) == ("vit", {"embed_dim": 8})
    assert changed.patch_embedding == choice.patch_embedding
    assert choice.settings == {"depth": 3}
    assert PluginChoice(name="light").with_settings({}).settings == {}


def test_flat_names_every_value_by_its_dotted_key() -> None:
    """The flat form has one text for each value, with dots between the sections."""
    config = RunConfig.model_validate(
        {"seed": 5, "augmentation": {"name": "light", "shift": 0.2}, "data": {"path": "a b"}}
    )
    flat = config.flat()
    assert flat["seed"] == "5"
    assert flat["name"] == ""
    assert flat["augmentation.name"] == "light"
    assert flat["augmentation.shift"] == "0.2"
    assert flat["data.path"] == "a b"
    assert flat["model.patch_embedding.name"] == "auto"
    assert flat["training.epochs"] == "60"
    assert flat["training.time_limit"] == ""


@settings(deadline=None)
@given(configs)
def test_flat_has_all_fields_and_tells_configs_apart(config: RunConfig) -> None:
    """Every field is in the flat form as text, and another seed shows."""
    flat = config.flat()
    for section, cls in (("data", DataConfig), ("training", TrainingConfig)):
        assert {key for key in flat if key.startswith(f"{section}.")} == {
            f"{section}.{field}" for field in cls.model_fields
        }
    assert all(isinstance(value, str) for value in flat.values())
    other = config.model_copy(update={"seed": config.seed ^ 1})
    assert other.flat() != flat


@pytest.mark.parametrize("path", ["\x00", "a\x00.csv", "x" * 5000, "\udcff"])
def test_what_cannot_be_a_path_is_still_a_setting(path: str) -> None:
    """Only reading it fails, with the sentence of the source that reads it."""
    assert DataConfig(path=path).source == ("table" if path.endswith(".csv") else "image_folder")


@pytest.mark.parametrize("name", ["flowers", "a", "7", "v1.2_x-y", "x" * 100])
def test_good_names_are_taken(name: str) -> None:
    """Letters, digits, dots, dashes and underscores make a name."""
    assert RunConfig(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ü", "x" * 101, "a\n", "a\nb"])
def test_bad_names_are_refused(name: str) -> None:
    """A name that no folder, URI or registry takes is refused."""
    with pytest.raises(ValidationError):
        RunConfig(name=name)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_outside_its_range_is_refused(seed: int) -> None:
    """A seed that numpy or torch would not take is refused."""
    with pytest.raises(ValidationError):
        RunConfig(seed=seed)


def test_held_back_shares_must_leave_training_images() -> None:
    """Two shares that are each allowed may be too much together."""
    RunConfig(data=DataConfig(validation_fraction=0.45, test_fraction=0.45))
    with pytest.raises(ValidationError, match=r"add up to 1\.20"):
        RunConfig(data=DataConfig(validation_fraction=0.6, test_fraction=0.6))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200), ("0.5m", 30), ("1.5h", 5400)]
)
def test_durations_are_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    """A duration is a number with a unit."""
    assert duration_seconds(text) == seconds
    assert TrainingConfig(time_limit=text).time_limit == text


@pytest.mark.parametrize("text", ["", "90", "0s", "-5m", "5 m", "5d", "m", "1e3s", "5m ", "5m\n"])
def test_other_durations_are_refused(text: str) -> None:
    """A duration without a unit, of zero, or with anything else in it is refused."""
    with pytest.raises(ValueError, match="90s, 20m or 2h"):
        duration_seconds(text)


def test_every_setting_explains_itself() -> None:
    """Each setting of each section has a help text."""
    for section in (RunConfig, DataConfig, ModelChoice, OptimizerConfig, TrainingConfig):
        for key, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{key}"
