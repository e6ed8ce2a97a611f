"""Preset, file and flags become one config, and a saved config is that config again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import (
    assemble,
    merged,
    read_settings,
    requested,
    save,
    validated,
)
from patchline.pipeline.data.ingestion import ingest, resolve
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.presets import PRESETS, PresetChoice, PresetName
from patchline.pipeline.training.record import RunRecord


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Return a function that writes a config file."""

    def write(text: str) -> Path:
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return file

    return write


def test_default_applies_where_nothing_is_said() -> None:
    """Without preset, file and flags the config is the default one, which is planned."""
    settings = assemble(preset_name=None, file=None, flags={})
    assert settings == {"preset": {"name": "balanced", "keep": []}}
    assert validated(settings) == validated({})
    assert validated({}).training.epochs == RunConfig().training.epochs


def test_flag_beats_file_beats_preset(written: Any) -> None:
    """A flag beats the file, and the preset's plan must keep what either sets."""
    file = written("preset: best\ntraining: {epochs: 7, batch_size: 16}\nseed: 4\n")
    of_file = validated(assemble(preset_name=None, file=file, flags={})).preset
    assert of_file is not None
    assert of_file.name == "best"
    assert of_file.keep == ("seed", "training.batch_size", "training.epochs")
    with_file = validated(assemble(preset_name="quick", file=file, flags={}))
    assert with_file.preset is not None
    assert with_file.preset.name == "quick"
    assert (with_file.training.epochs, with_file.training.batch_size) == (7, 16)
    flags = {"training": {"epochs": 3}}
    with_flag = validated(assemble(preset_name="quick", file=file, flags=flags))
    assert (with_flag.training.epochs, with_flag.training.batch_size) == (3, 16)
    assert with_flag.seed == 4
    assert with_flag.model.settings["size"] == "micro"
    assert with_flag.preset is not None
    assert "seed" in with_flag.preset.keep


def test_inputs_of_a_merge_are_not_changed() -> None:
    """Merging changes neither side, and no preset."""
    weaker: dict[str, Any] = {"a": {"b": {"c": 1}}, "d": 2}
    stronger: dict[str, Any] = {"a": {"b": {"e": 3}}}
    before = copy.deepcopy((weaker, stronger, PRESETS))
    assert merged(weaker, stronger) == {"a": {"b": {"c": 1, "e": 3}}, "d": 2}
    assemble(preset_name="best", file=None, flags={"model": {"size": "ti"}})
    assert (weaker, stronger, PRESETS) == before


def test_merging_with_nothing_changes_nothing() -> None:
    """Empty settings on either side leave the other as it is."""
    settings = {"model": {"name": "vit", "depth": 3}, "seed": 1}
    assert merged(settings, {}) == settings
    assert merged({}, settings) == settings


def test_a_path_without_a_source_is_a_folder_of_images(written: Any) -> None:
    """A file that names only the folder is about that folder, not about the built-in digits."""
    file = written("data: {path: flowers}\n")
    assert validated(assemble(preset_name=None, file=file, flags={})).data.source == "image_folder"
    named = written("data: {path: flowers, source: digits}\n")
    assert validated(assemble(preset_name=None, file=named, flags={})).data.source == "digits"
    assert validated({"data": {"image_size": 8}}).data.source == "digits"


def test_another_plugin_drops_the_settings_of_the_old_one() -> None:
    """Choosing another plugin keeps nothing of the replaced one's settings."""
    file = {"augmentation": {"name": "light", "shift": 0.3}}
    assert merged(file, {"augmentation": {"name": "none"}}) == {"augmentation": {"name": "none"}}
    same = {"augmentation": {"name": "light", "scale": 0.1}}
    assert merged(file, same)["augmentation"] == {"name": "light", "shift": 0.3, "scale": 0.1}


def test_another_model_keeps_the_patch_embedding() -> None:
    """The patch embedding is a choice of its own, and outlives a change of the model."""
    file = {"model": {"name": "vit", "depth": 3, "patch_embedding": {"name": "linear"}}}
    changed = merged(file, {"model": {"name": "other"}})["model"]
    assert changed == {"name": "other", "patch_embedding": {"name": "linear"}}


def test_another_plugin_drops_settings_that_stand_beside_a_default_name(written: Any) -> None:
    """Settings of the default plugin, written without its name, go when another is chosen."""
    file = written("augmentation: {rotation: 5}\n")
    for name, settings in (("light", {"rotation": 5}), ("none", {})):
        flags = {"augmentation": {"name": name}}
        chosen = validated(assemble(preset_name=None, file=file, flags=flags)).augmentation
        assert chosen.name == name
        assert settings.items() <= chosen.settings.items()
    assert chosen.settings == {}


def test_another_data_source_drops_the_options_of_the_old_one(tmp_path: Path) -> None:
    """A saved run on a folder can be used for the digits: the folder's options go."""
    given = validated({"data": {"source": "image_folder", "path": "photos"}})
    save(given, tmp_path / "config.yaml")
    flags = {"data": {"source": "digits", "path": None}}
    settings = assemble(preset_name=None, file=tmp_path / "config.yaml", flags=flags)
    assert validated(settings).data.source == "digits"


@pytest.mark.parametrize(
    ("section", "values"),
    [("augmentation", {"rotation": 5}), ("model", {"patch_embedding": {"patch_size": 4}})],
)
def test_setting_of_the_default_plugin_needs_no_name(section: str, values: dict[str, Any]) -> None:
    """A setting of the plugin that is used anyway can be given without naming the plugin."""
    chosen = validated({section: values}).model_dump()[section]
    assert chosen["name"] == RunConfig().model_dump()[section]["name"]
    choice = chosen.get("patch_embedding", chosen)
    assert choice["name"] in ("light", "conv")
    assert {**choice, **values.get("patch_embedding", values)} == choice


def test_two_lengths_at_once_are_refused() -> None:
    """Whoever asks for epochs and for a time is told, instead of getting one of them."""
    flags = {"training": {"epochs": 3, "time_limit": "1m"}}
    with pytest.raises(ConfigError, match="both set the length"):
        assemble(preset_name=None, file=None, flags=flags)


def test_a_limit_that_nothing_can_reach_is_refused() -> None:
    """90 instead of 0.9 would refuse every version after hours of training."""
    with pytest.raises(ConfigError, match=r"never exceeds 1; .* 0\.9"):
        validated({"promotion": {"minimum": {"accuracy": 90}}})


@pytest.mark.parametrize(
    "length", ["training: {time_limit: 20m, batch_size: 16}", "record: {step_plan: [[0, 0.0, 90]]}"]
)
def test_epochs_flag_drops_another_length_of_the_file(written: Any, length: str) -> None:
    """Who asks for epochs gets epochs, whatever time limit or plan the file holds."""
    file = written(f"{length}\nseed: 16\n")
    flags = {"training": {"epochs": 3}}
    config = validated(assemble(preset_name=None, file=file, flags=flags))
    assert (config.training.epochs, config.training.time_limit) == (3, None)
    assert (config.record.step_plan, config.seed) == (None, 16)


def test_time_limit_flag_drops_the_plan_of_the_file(written: Any) -> None:
    """Who asks for a time limit does not replay the steps that an old run recorded."""
    file = written("training: {time_limit: 20m}\nrecord: {step_plan: [[0, 0.0, 90]]}\n")
    flags = {"training": {"time_limit": "5m"}}
    config = validated(assemble(preset_name=None, file=file, flags=flags))
    assert (config.training.time_limit, config.record.step_plan) == ("5m", None)


@pytest.mark.parametrize("length", [{"epochs": 3}, {"time_limit": "5m"}])
def test_a_new_length_drops_what_a_run_recorded(written: Any, length: dict[str, Any]) -> None:
    """Steps of an old run mean nothing in a run of another length."""
    file = written(
        "record: {validation_plan: [[90, 50]], rate_cuts: [10], halvings: [20], extends: a1}\n"
        "training: {batch_size: 16, max_epochs: 7}\n"
    )
    flags = {"training": length}
    chosen = assemble(preset_name=None, file=file, flags=flags)
    assert chosen["record"] == {"extends": "a1"}
    assert chosen["training"] == {"batch_size": 16, **length}


FORMER = {
    "training": {"halvings": [20], "thread_changes": [[5, 1]], "feature_precision": "auto"},
    "model": {"init": "w.safetensors", "init_sha256": "a" * 64},
    "set_by_user": ["model.init"],
}


def test_a_config_of_an_earlier_version_is_read_with_one_sentence(
    written: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What it recorded among the settings is the record; a flag still overrules it."""
    file = written(yaml.safe_dump(FORMER))
    record = validated(assemble(preset_name="none", file=file, flags={})).record
    assert (record.halvings, record.feature_precision) == ((20,), None)
    assert record.init_sha256 == "a" * 64
    [said] = [each.getMessage() for each in caplog.records]
    assert (
        "is of an earlier version: what it records in `training:` and `model:` is read as" in said
    )
    assert "`record:`, except for training.thread_changes, as threads no longer change" in said
    other = {"model": {"init": "other.safetensors"}}
    assert validated(assemble(preset_name="none", file=file, flags=other)).record == RunRecord(
        halvings=(20,), set_by_user=("model.init",)
    )
    assert RunConfig.model_validate(FORMER).record.halvings == (20,)  # a request, or a schedule


@pytest.mark.parametrize("text", ["record: 3", "record:", "training: {halvings: [1]}\nrecord: 3"])
def test_a_record_that_is_no_section_is_named(written: Any, text: str) -> None:
    """As any other section of a file."""
    with pytest.raises(ConfigError, match="record"):
        requested(None, file=written(f"{text}\nmodel: {{init: w.safetensors}}\n"))


def test_file_keeps_its_length_without_a_flag(written: Any) -> None:
    """A recorded plan is replayed when no flag asks for another length."""
    file = written("training: {time_limit: 20m}\nrecord: {step_plan: [[0, 0.0, 90]]}\n")
    config = validated(assemble(preset_name=None, file=file, flags={"seed": 1}))
    assert (config.training.time_limit, config.record.step_plan) == ("20m", ((0, 0.0, 90),))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: 1\ntraining: [1, 2\nname: a\n", 3),
        ("seed: 1\n\ttraining: 2\n", 2),
        ("a: 1\nb: 'open\n", 3),
        ("seed: 1\nname: a: b\n", 2),
    ],
)
def test_broken_yaml_names_the_line(written: Any, text: str, line: int) -> None:
    """A file that is not YAML is answered with the line and what is wrong there."""
    file = written(text)
    with pytest.raises(ConfigError) as raised:
        read_settings(file)
    sentence = str(raised.value)
    assert f"Config file {file}, line {line} is not YAML" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just words\n", "3\n"])
def test_file_without_settings_is_refused(written: Any, text: str) -> None:
    """A file that is YAML but no mapping is refused with an example."""
    with pytest.raises(ConfigError, match=r"holds no settings\. Write lines such as `seed: 1`"):
        read_settings(written(text))


def test_empty_file_sets_nothing(written: Any) -> None:
    """An empty file, or one of comments, is a file without settings."""
    assert read_settings(written("")) == {}
    assert read_settings(written("# nothing yet\n")) == {}


def test_file_that_does_not_exist_or_is_no_text_is_refused(tmp_path: Path) -> None:
    """A wrong path, a folder and a binary file are each named."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        read_settings(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
    (tmp_path / "photo.yaml").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "photo.yaml")


def test_unknown_preset_names_the_nearest() -> None:
    """A misspelt preset is answered with the nearest and all there are."""
    with pytest.raises(ConfigError) as raised:
        assemble(preset_name="quik", file=None, flags={})
    assert "Did you mean 'quick'?" in str(raised.value)
    assert "quick, balanced, best" in str(raised.value)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_a_valid_config(name: PresetName) -> None:
    """A preset alone is a config: the defaults, until it is planned."""
    config = validated(assemble(preset_name=name, file=None, flags={}))
    assert config.preset is not None
    assert (config.preset.name, config.preset.keep) == (name, ())
    assert config.model_copy(update={"preset": None}) == validated({"preset": "none"})


@pytest.mark.parametrize("text", ["preset: none\n", "preset: null\n", "preset: {name: none}\n"])
def test_no_preset_is_a_choice(written: Any, text: str) -> None:
    """`none` plans nothing, in a file and as a flag; a resolved config, which says null, neither.

    What names no preset is planned.
    """
    flags = {"training": {"batch_size": 8}}
    assert validated(assemble(preset_name=None, file=written(text), flags=flags)).preset is None
    by_flag = validated(assemble(preset_name="none", file=written("preset: best\n"), flags={}))
    assert by_flag.preset is None
    again = validated(assemble(preset_name="quick", file=written(text), flags=flags)).preset
    assert again is not None
    assert (again.name, again.keep) == ("quick", ("training.batch_size",))
    planned = validated(assemble(preset_name=None, file=written("seed: 3\n"), flags={})).preset
    assert planned is not None
    assert (planned.name, planned.keep) == ("balanced", ("seed",))


def test_a_preset_among_the_settings_counts() -> None:
    """It is not replaced by the default one, and an argument of its own overrides it."""
    assert requested(None, flags={"preset": "none"}).preset is None
    quick = requested(None, flags={"preset": "quick", "seed": 1})
    assert quick.preset == PresetChoice(name="quick", keep=("seed",))
    named = requested(None, preset_name="best", flags={"preset": "none"})
    assert named.preset == PresetChoice(name="best")


def test_a_form_may_choose_no_preset() -> None:
    """The Prefect form offers `none` beside the presets, and its default is the plan."""
    schema = RunConfig.model_json_schema()
    assert schema["$defs"]["PresetChoice"]["properties"]["name"]["enum"] == [*PRESETS, "none"]
    assert schema["properties"]["preset"]["default"]["name"] == "balanced"
    assert RunConfig.model_validate({"preset": {"name": "none", "keep": []}}).preset is None
    assert RunConfig.model_validate({}).preset == RunConfig(preset="balanced").preset


def test_a_schedule_keeps_the_preset_and_what_was_set(written: Any, tmp_path: Path) -> None:
    """A config that is stored before it is planned still tells which settings the user gave."""
    file = written("preset: balanced\ntraining: {epochs: 60}\n")
    stored = validated(assemble(preset_name=None, file=file, flags={}))
    assert RunConfig.model_validate(stored.model_dump(mode="json")) == stored
    save(stored, tmp_path / "stored.yaml")
    flags = {"training": {"batch_size": 8}}
    again = validated(assemble(preset_name=None, file=tmp_path / "stored.yaml", flags=flags))
    assert again.preset is not None
    assert again.preset.keep == ("training.batch_size", "training.epochs")


def test_saved_config_is_the_same_config(photos: Path, tmp_path: Path) -> None:
    """A resolved config that is saved, read and checked is equal to itself."""
    config = validated(
        {
            "data": {"source": "image_folder", "path": str(photos)},
            "optimizer": {"learning_rate": 1e-5},
            "training": {"time_limit": "90s"},
            "record": {"step_plan": [[0, 0.0, 18], [7, 0.3, 20]]},
            "augmentation": {"name": "light", "rotation": 3},
        }
    )
    for checked in (config, resolve(config, ingest(config, tmp_path / "work"))):
        save(checked, tmp_path / "config.yaml")
        assert validated(read_settings(tmp_path / "config.yaml")) == checked


def test_saved_file_reads_like_the_config(tmp_path: Path) -> None:
    """The sections of a saved file come in the order of the config, names untouched."""
    save(validated({"data": {"path": "Blüten/rot"}}), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    sections = [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")]
    assert sections == list(RunConfig.model_fields)
    assert "Blüten/rot" in text
