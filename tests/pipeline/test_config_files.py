"""Preset, file and flags become one config, and a saved config is that config again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import (
    assemble,
    build_config,
    merge_settings,
    validate_config,
)
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.former_settings import DECIDED
from patchline.pipeline.presets import PresetName
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.training.record import RunRecord

Chosen = Callable[..., RunConfig]


@pytest.fixture
def chosen(tmp_path: Path) -> Chosen:
    """Return a function that puts together what a file and flags say."""

    def choose(text: str, preset: PresetName | None = None, **flags: Any) -> RunConfig:
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return validate_config(assemble(preset_name=preset, file=file, flags=flags))

    return choose


def _kept(config: RunConfig) -> tuple[str, tuple[str, ...]]:
    """Return the name of the preset, and the settings that its plan must keep."""
    assert config.preset is not None
    return config.preset.name, config.preset.keep


def test_flag_beats_file_beats_preset(chosen: Chosen) -> None:
    """A flag beats the file, and the preset's plan must keep what either sets."""
    text = "preset: best\ntraining: {epochs: 7, batch_size: 16}\nseed: 4\n"
    keep = ("seed", "training.batch_size", "training.epochs")
    assert _kept(chosen(text)) == ("best", keep)
    with_file = chosen(text, "quick")
    assert _kept(with_file) == ("quick", keep)
    assert (with_file.training.epochs, with_file.training.batch_size) == (7, 16)
    with_flag = chosen(text, "quick", training={"epochs": 3})
    assert (with_flag.training.epochs, with_flag.training.batch_size) == (3, 16)
    assert with_flag.seed == 4
    assert with_flag.model.settings["size"] == "micro"
    assert _kept(with_flag) == ("quick", keep)
    assert _kept(chosen("# nothing yet\n")) == ("balanced", ())


def test_a_path_without_a_source_is_a_folder_of_images(chosen: Chosen) -> None:
    """A file that names only the folder is about that folder, not about the built-in digits."""
    assert chosen("data: {path: flowers}\n").data.source == "image_folder"
    assert chosen("data: {path: flowers, source: digits}\n").data.source == "digits"
    assert chosen("data: {image_size: 8}\n").data.source == "digits"


def test_another_plugin_drops_the_settings_of_the_old_one(chosen: Chosen) -> None:
    """Choosing another plugin keeps nothing of the replaced one's settings, named or by default.

    The patch embedding is a choice of its own, and outlives a change of the model.
    """
    file = {"augmentation": {"name": "light", "shift": 0.3}}
    assert merge_settings(file, {"augmentation": {"name": "none"}}) == {
        "augmentation": {"name": "none"}
    }
    same = {"augmentation": {"name": "light", "scale": 0.1}}
    assert merge_settings(file, same)["augmentation"] == {
        "name": "light",
        "shift": 0.3,
        "scale": 0.1,
    }
    model = {"name": "vit", "depth": 3, "patch_embedding": {"name": "linear"}}
    changed = merge_settings({"model": model}, {"model": {"name": "other"}})["model"]
    assert changed == {"name": "other", "patch_embedding": {"name": "linear"}}
    for name, settings in ((None, {"rotation": 5}), ("light", {"rotation": 5}), ("none", {})):
        flags = {"augmentation": {"name": name}} if name else {}
        found = chosen("augmentation: {rotation: 5}\n", **flags).augmentation
        assert found.name == (name or "light")
        assert settings.items() <= found.settings.items()
    assert found.settings == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("promotion: {minimum: {accuracy: 90}}", r"never exceeds 1; .* 0\.9"),
        ("- 1\n- 2\n", r"holds no settings\. Write lines such as `seed: 1`"),
        ("record: 3\nmodel: {init: w.safetensors}", "record"),
        ("seed: 1\ntraining: [1, 2\nname: a\n", r"^Config file .*run\.yaml, line 3 is not YAML.*"),
        ("seed: 1\n\ttraining: 2\n", "line 2 is not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(chosen: Chosen, text: str, words: str) -> None:
    """In one sentence, which names the line where the file is not YAML."""
    with pytest.raises(ConfigError, match=words) as raised:
        chosen(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        ({"seed": 1}, ("20m", 7, ((0, 0.0, 90),))),
        ({"training": {"epochs": 3}}, (None, 3, None)),
        ({"training": {"time_limit": "5m"}}, ("5m", None, None)),
        ({"training": {"epochs": 3, "time_limit": "5m"}}, ("5m", 3, None)),
        ({"training": {"time_limit": None}}, (None, 7, None)),
    ],
)
def test_a_flag_drops_another_length_of_the_file(
    chosen: Chosen, flags: dict[str, Any], length: tuple[object, ...]
) -> None:
    """Who asks for epochs or a time gets it, whatever the file holds; else its plan is replayed."""
    text = "training: {time_limit: 20m, epochs: 7, batch_size: 16}\n"
    config = chosen(f"{text}record: {{step_plan: [[0, 0.0, 90]]}}\n", **flags)
    training = config.training
    assert (training.time_limit, training.epochs, config.record.step_plan) == length
    assert training.batch_size == 16
    assert ("training.epochs" in _kept(config)[1]) is (training.epochs is not None)


def test_a_new_length_drops_what_a_run_recorded(chosen: Chosen) -> None:
    """Steps of an old run mean nothing in a run of another length."""
    config = chosen(
        "record: {validation_plan: [[90, 50]], rate_cuts: [10], halvings: [20], extends: a1}\n"
        "training: {batch_size: 16}\n",
        training={"epochs": 3},
    )
    assert config.record == RunRecord(extends="a1")


def test_a_config_of_an_earlier_version_is_read_with_one_sentence(
    chosen: Chosen, caplog: pytest.LogCaptureFixture
) -> None:
    """What it recorded among the settings is the record; a flag still overrules it."""
    former = {
        "training": {"halvings": [20], "thread_changes": [[5, 1]], "feature_precision": "auto"},
        "model": {"init": "w.safetensors", "init_sha256": "a" * 64},
        "set_by_user": ["model.init"],
    }
    text = yaml.safe_dump(former)
    record = chosen(text, "none").record
    assert (record.halvings, record.feature_precision) == ((20,), None)
    assert record.init_sha256 == "a" * 64
    [said] = caplog.messages
    assert "is of an earlier version. What it records in" in said
    assert "except for training.thread_changes, as threads no longer change" in said
    other = chosen(text, "none", model={"init": "other.safetensors"}).record
    assert other == RunRecord(halvings=(20,), set_by_user=("model.init",))
    assert RunConfig.model_validate(former).record.halvings == (20,)  # a request, or a schedule


def test_what_only_a_plan_decides_now_is_read_as_its_record(
    chosen: Chosen, caplog: pytest.LogCaptureFixture
) -> None:
    """With one sentence, unless it is what every run has that no plan decides otherwise."""
    assert chosen("training: {average_last: null, shuffle_window: 1.0}\n").record == RunRecord()
    assert not caplog.records
    record = chosen("training: {average_last: 5, shuffle_window: 0.1}\n").record
    assert (record.average_last, record.shuffle_window) == (5, 0.1)
    [said] = caplog.messages
    assert "is read as `record:`." in said


def test_a_setting_that_the_program_decides_now_is_read_with_one_sentence(
    chosen: Chosen, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that every run has now needs no sentence."""
    for key, former in DECIDED.items():
        section, name = key.split(".")
        plugin = {"name": former.plugin} if former.plugin else {}
        chosen(yaml.safe_dump({section: {name: former.now, **plugin}}), "none")
    assert not caplog.records
    config = chosen("training: {full_size_from: 0.8, epochs: 3}\n", "none")
    assert config.training.epochs == 3
    [said] = caplog.messages
    assert "training.full_size_from 0.8 is no longer a setting: images have their full size" in said
    assert RunConfig.model_validate({"training": {"full_size_from": 0.8}}) == RunConfig()


def test_of_two_settings_that_did_the_same_one_has_the_value(
    chosen: Chosen, caplog: pytest.LogCaptureFixture
) -> None:
    """A request for approval, which holds the gates alone, is read the same way."""
    former = {"max_calibration_error": 0.05, "minimum": {"accuracy": 0.9}}
    promotion = chosen(yaml.safe_dump({"promotion": former}), "none").promotion
    assert (promotion.maximum, promotion.minimum) == ({"ece": 0.05}, {"accuracy": 0.9})
    [said] = caplog.messages
    words = "promotion.max_calibration_error 0.05 is read as promotion.maximum.ece 0.05."
    assert said.endswith(words)
    assert PromotionConfig.model_validate(former) == promotion
    both = {**former, "maximum": {"ece": 0.02, "log_loss": 0.5}}
    assert PromotionConfig.model_validate(both).maximum == {"ece": 0.02, "log_loss": 0.5}
    assert PromotionConfig.model_validate({"max_calibration_error": None}) == PromotionConfig()
    with pytest.raises(ConfigError, match=r"promotion\.maximum\.ece is 'low'"):
        chosen("promotion: {max_calibration_error: low, maximum: {ece: 0.02}}\n", "none")
    assert PromotionConfig.model_validate({"better_than_champion": False}).significance == 1
    assert PromotionConfig.model_validate({"better_than_champion": True}) == PromotionConfig()
    text = "data: {value_range: null, value_range_percentiles: [0.5, 99]}\n"
    assert chosen(text, "none").data.value_range == ("0.5%", "99%")
    assert caplog.messages[-1].endswith("0.5 99 is read as data.value_range 0.5% 99%.")


_PLANNED: dict[str, Any] = {"name": "quick", "keep": []}


@pytest.mark.parametrize(
    ("former", "preset", "now"),
    [
        ({"refit": True, "ensemble": False}, None, "refit"),
        ({"folds": 5, "refit": False, "ensemble": True}, None, "ensemble"),
        ({"folds": 5, "refit": False, "ensemble": False}, None, None),
        ({"refit": False}, None, None),
        ({"refit": False}, "quick", "best"),
        ({"refit": False}, {**_PLANNED, "keep": ["training.refit"]}, "best"),
        ({"refit": False}, _PLANNED, None),
        ({"epochs": 60}, {**_PLANNED, "keep": ["training.epochs"]}, 60),
        ({"epochs": 60, "max_epochs": None}, _PLANNED, None),
    ],
)
def test_what_was_set_in_an_earlier_version_is_set(
    chosen: Chosen, former: dict[str, Any], preset: object, now: object
) -> None:
    """No refit was a choice only where a plan could have made one, and so were 60 epochs."""
    training = chosen(yaml.safe_dump({"training": former, "preset": preset})).training
    assert (training.epochs if "epochs" in former else training.final_model) == now


@pytest.mark.parametrize(
    ("former", "now", "said"),
    [
        ({"class_weights": "none", "sampling": "uniform"}, "none", ""),
        ({"class_weights": "balanced", "sampling": "uniform"}, "weights", "class_balance weights."),
        ({"class_weights": "none", "sampling": "balanced"}, "sampling", "class_balance sampling."),
        ({"epochs": 60, "max_epochs": None, "time_limit": "5m"}, None, ""),
        ({"epochs": 60, "max_epochs": 7, "time_limit": "5m"}, 7, "7 is read as training.epochs."),
        ({"epochs": 60, "max_epochs": None}, None, ""),
        ({"epochs": 3, "max_epochs": None}, 3, ""),
        ({"epochs": 3, "max_epochs": 7}, 3, "without training.time_limit, training.epochs alone"),
    ],
)
def test_of_two_settings_that_did_the_same_one_is_left(
    chosen: Chosen, caplog: pytest.LogCaptureFixture, former: dict[str, Any], now: object, said: str
) -> None:
    """With one sentence, if that is not the default; 60 epochs were every config's with none."""
    training = chosen(yaml.safe_dump({"training": former}), "none").training
    assert (training.epochs if "epochs" in former else training.class_balance) == now
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


@pytest.mark.parametrize("text", ["preset: none\n", "preset: null\n", "preset: {name: none}\n"])
def test_no_preset_is_a_choice(chosen: Chosen, text: str) -> None:
    """`none` plans nothing, in a file, among settings and as a flag, which overrules a file.

    A resolved config, which says null, plans nothing either; what names no preset is planned.
    """
    assert chosen(text, training={"batch_size": 8}).preset is None
    assert chosen("preset: best\n", "none").preset is None
    again = chosen(text, "quick", training={"batch_size": 8})
    assert _kept(again) == ("quick", ("training.batch_size",))
    assert _kept(chosen("seed: 3\n")) == ("balanced", ("seed",))
    assert build_config(None, flags={"preset": "none"}).preset is None
    quick = build_config(None, flags={"preset": "quick", "seed": 1})
    assert _kept(quick) == ("quick", ("seed",))
    assert _kept(build_config(None, preset_name="best", flags={"preset": "none"})) == ("best", ())
