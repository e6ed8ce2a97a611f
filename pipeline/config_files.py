"""Assemble a `RunConfig` from preset, file and flags, and save it.

Flags override the file, and both override the preset, which is planned once the data is read.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from patchline.pipeline import config_errors, presets
from patchline.pipeline.config import AUTO, NO_WEIGHTS, RunConfig, flatten_settings
from patchline.pipeline.data.config import source_of
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.former_settings import with_todays_names
from patchline.pipeline.plugin_system.plugin_loader import (
    list_installed,
    load_objective,
)
from patchline.pipeline.plugin_system.plugin_settings import check_plugins, patch_embedding_name
from patchline.pipeline.presets import PresetName
from patchline.pipeline.training.initial_weights import recipe
from patchline.pipeline.training.record import TrainingRecord
from patchline.pipeline.workspace.files.atomic_files import write_text

Settings = dict[str, Any]
logger = logging.getLogger(__name__)


def read_settings(file: Path) -> Settings:
    """Read a YAML config file into nested settings, without checking them.

    Raises:
        ConfigError: if there is no such file, or it is not a YAML mapping.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"Config file {file} does not exist. Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Config file {file} cannot be read ({getattr(error, 'strerror', None) or error}). "
            "Give a text file."
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(
            f"Config file {file}{where} is not YAML: {problem}. Correct it."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"Config file {file} holds no settings. Write lines such as `seed: 1`.")
    return content


def _settings_of(file: Path) -> Settings:
    """Return the settings of a file, which an earlier version may have written."""
    settings, differently = with_todays_names(read_settings(file))
    _say_earlier(file, tuple(differently))
    return settings


@functools.cache
def _say_earlier(file: Path, differently: tuple[str, ...]) -> None:
    """Say once what is read differently than an earlier version wrote it."""
    for sentence in differently:
        logger.warning("%s is of an earlier version. %s", file, sentence)


def merge_settings(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> Settings:
    """Return both merged; where both have a key, the stronger value is taken.

    Choosing another plugin drops the settings of the plugin it replaces.
    """
    result = dict(weaker)
    for key, value in stronger.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            kept = _keep_valid(old, value)
            result[key] = merge_settings(kept, value)
        else:
            result[key] = dict(value) if isinstance(value, Mapping) else value
    return result


_OF_ANY_MODEL = ("patch_embedding", "init", "download")


def _keep_valid(old: Mapping[str, Any], new: Mapping[str, Any]) -> Settings:
    """Return the settings of a section that stay valid when another plugin is chosen."""
    kept = dict(old)
    if "name" in new and "name" in old and new["name"] != old["name"]:
        kept = {k: v for k, v in old.items() if k in _OF_ANY_MODEL}
    if "source" in new and "source" in old and new["source"] != old["source"]:
        kept.pop("options", None)
    return kept


_GIVEN = "record.set_by_user"


def assemble(*, preset_name: str | None, file: Path | None, flags: Settings) -> Settings:
    """Merge file and flags, and name the preset with all settings that its plan must keep.

    With initial weights, the settings that the user has given are listed too, because the others
    follow the weights.

    Args:
        preset_name: overrides the preset of the flags and the file; None for that, or else the
            default one.
        file: a YAML file with settings, and optionally `preset: quick`.
        flags: nested settings, which override the file.
    """
    settings = _with_length_of(flags, _settings_of(file)) if file is not None else {}
    preset = settings.pop("preset", presets.DEFAULT)
    if "preset" in flags:
        flags = {**flags}
        preset = flags.pop("preset")
    name = _preset_name(preset if preset_name is None else preset_name)
    given = _find_given_keys(settings, flags, preset)
    chosen = _without(_merge_flags(settings, flags), "record", {"set_by_user"})
    if _in_section(chosen, "model", "init") == NO_WEIGHTS:
        chosen["model"] = {**chosen["model"], "init": None}
    reference = _in_section(chosen, "model", "init")
    if reference:
        listed = sorted(given - _find_open_keys(chosen))
        if isinstance(record := chosen.get("record", {}), Mapping):  # else it is refused later
            chosen["record"] = {**record, "set_by_user": listed}
    if reference and name is None:  # else the plan decides
        trainable = _in_section(chosen, "training", "trainable")
        taught = bool(_in_section(chosen, "training", "teacher"))
        followed = recipe.settings_for(
            str(reference), trainable, labelled=_is_labelled(chosen), taught=taught
        )
        if _in_section(chosen, "training", "time_limit"):  # it has no other maximum
            followed = _without(followed, "training", {"epochs"})
        chosen = merge_settings(followed, chosen)
    choice = None if name is None else {"name": name, "keep": sorted(given)}
    return {**chosen, "preset": choice}


def _preset_name(preset: object) -> PresetName | None:
    """Return the name of the preset that a file or a flag names; None to plan nothing.

    Raises:
        ConfigError: if there is no such preset.
    """
    choice = presets.preset_choice(preset)
    if choice is None:
        return None
    name = choice.get("name", "") if isinstance(choice, Mapping) else choice
    return presets.check_preset(str(name))


def _find_given_keys(settings: Settings, flags: Settings, preset: object) -> set[str]:
    """Return the dotted keys of the settings that the user has given in a file and in flags.

    A config that was stored before it was resolved, as the parameters of a schedule hold it, has
    all settings and lists these.
    """
    listed = _in_section(settings, "record", "set_by_user")
    if listed is None and isinstance(preset, Mapping):
        listed = preset.get("keep", ())
    if isinstance(listed, list | tuple):
        return {*map(str, listed), *flatten_settings(flags)}
    return set(flatten_settings(merge_settings(settings, flags))) - {_GIVEN}


def _is_labelled(settings: Settings) -> bool:
    """Return whether the objective uses labels.

    Raises:
        PluginError: if there is no such objective.
    """
    name = _in_section(settings, "objective", "name")
    return not isinstance(name, str) or load_objective(name).uses_labels


def _find_open_keys(settings: Settings) -> set[str]:
    """Return the key of the patch embedding if it is given as `auto`, which chooses none."""
    model = settings.get("model")
    embedding = model.get("patch_embedding") if isinstance(model, Mapping) else None
    is_auto = isinstance(embedding, Mapping) and embedding.get("name") == AUTO
    return {"model.patch_embedding.name"} if is_auto else set()


def _in_section(settings: Settings, section: str, key: str) -> Any:
    """Return a value that has not been checked yet; None if its section is no mapping."""
    value = settings.get(section)
    return value.get(key) if isinstance(value, Mapping) else None


def _with_length_of(flags: Settings, settings: Settings) -> Settings:
    """Return the settings of a file without their length if flags set one."""
    length, training = {"epochs", "time_limit"}, flags.get("training", {})
    if not length & set(training):
        return settings
    if any(training.get(key) is not None for key in length):
        settings = _without(settings, "training", length)
    of_length = set(TrainingRecord.model_fields) - {"feature_precision"}
    return _without(settings, "record", of_length)


def _merge_flags(settings: Settings, flags: Settings) -> Settings:
    """Merge the settings of a file with flags."""
    if _in_section(flags, "model", "init"):
        settings = _without(settings, "record", {"init_sha256"})
    if _in_section(flags, "training", "teacher"):
        settings = _without(settings, "record", {"teacher_sha256"})
    if settings:
        settings = _with_own_embedding(_with_plugin_names(settings), flags)
    return merge_settings(settings, flags)


def _without(settings: Settings, section: str, keys: set[str]) -> Settings:
    """Return the settings without some keys of a section."""
    values = settings.get(section)
    if not isinstance(values, Mapping):
        return settings
    return {**settings, section: {k: v for k, v in values.items() if k not in keys}}


def _with_own_embedding(settings: Settings, flags: Settings) -> Settings:
    """Replace `auto` by the model's own patch embedding where a flag names that plugin.

    The plugin is then the same, so its settings stay.
    """
    model = settings["model"]
    embedding = model.get("patch_embedding") if isinstance(model, Mapping) else None
    if not isinstance(embedding, Mapping) or embedding.get("name") != AUTO:
        return settings
    model_flags = flags.get("model", {})
    name = model_flags.get("patch_embedding", {}).get("name")
    if name is None or patch_embedding_name(model_flags.get("name", model["name"]), AUTO) != name:
        return settings
    return merge_settings(settings, {"model": {"patch_embedding": {**embedding, "name": name}}})


def build_config(
    data: str | None,
    *,
    preset_name: str | None = None,
    file: Path | None = None,
    flags: Settings | None = None,
) -> RunConfig:
    """Return the checked config of a run.

    Args:
        data: the data to train on, as the argument DATA of a command names it.
        preset_name: plans what neither the file nor a flag sets; None for the file's, or else the
            default one, and `none` to plan nothing.
        file: a YAML file.
        flags: nested settings, which override the file.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
        PluginError: for a plugin that is unknown or broken.
    """
    given = flags or {}
    named = data_settings(data, given.get("data", {}).get("source"))
    strongest = merge_settings(given, named)
    return validate_config(assemble(preset_name=preset_name, file=file, flags=strongest))


def data_settings(data: str | None, source: str | None) -> Settings:
    """Return the settings that the argument DATA stands for: a path, a source, or SOURCE:NAME.

    Args:
        data: the argument; None sets nothing.
        source: the data source that is chosen already; it reads whatever DATA says.
    """
    if data is None:
        return {}
    if source is not None:
        return {"data": {"source": source, "path": data}}
    sources = {entry.name for entry in list_installed("data_source")}
    named, colon, name = data.partition(":")
    if colon and named in sources and not Path(data).exists():
        return {"data": {"source": named, "path": name or None}}
    if data in sources and not Path(data).exists():
        return {"data": {"source": data, "path": None}}
    return {"data": {"source": source_of(data), "path": data}}


def validate_config(settings: Settings) -> RunConfig:
    """Check all settings, including the plugins' own, and fill in the defaults.

    Raises:
        ConfigError: for the first setting that is unknown or has a bad value.
        PluginError: for a plugin that is unknown or broken.
    """
    try:
        config = RunConfig.model_validate(_with_plugin_names(settings))
    except ValidationError as error:
        raise config_errors.sentence(error, RunConfig) from error
    return check_plugins(config)


def _with_plugin_names(settings: Settings) -> Settings:
    """Add the default plugin names where only settings were given."""
    defaults = RunConfig()
    named: Settings = {
        "augmentation": {"name": defaults.augmentation.name},
        "objective": {"name": defaults.objective.name},
        "launcher": {"name": defaults.launcher.name},
        "model": {
            "name": defaults.model.name,
            "patch_embedding": {"name": AUTO},
        },
    }
    return merge_settings(named, settings)


def save(config: RunConfig, file: Path) -> None:
    """Write a config as YAML; `patchline run --config` reproduces the run from it."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    write_text(file, text)
