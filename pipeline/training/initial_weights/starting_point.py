"""The initial weights of a run, and the settings that follow them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from patchline.pipeline import config_files
from patchline.pipeline.config import AUTO, RunConfig, flatten_settings, pick_settings
from patchline.pipeline.config_files import Settings
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.data.ingested_data import SeenBefore
from patchline.pipeline.data.seen_images import count_seen_images
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system.plugin_loader import load_objective
from patchline.pipeline.plugin_system.plugin_settings import patch_embedding_name
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.initial_weights import finding, recipe
from patchline.pipeline.training.initial_weights.record import (
    InitialWeights,
    read_stored_provenance,
    weights_folder,
)
from patchline.pipeline.workspace.tracking.tracked_run import INITIAL_RUN_TAG, LICENSE_TAG
from patchline.plugin_api import ImageSpec

_CHANNELS = (1, 3)
_DIMENSIONS = ("embed_dim", "depth", "mlp_dim")
_DECIDED = ("name", *_DIMENSIONS)
"""Settings that no weights can be adapted to."""
_LAST_BLOCKS = "training.last_blocks"
_RESIZE = "data.resize"
_OF_THE_SIZE = (*_DIMENSIONS, "num_heads")
"""Settings that follow model.size where they are null."""


def with_initial_weights(
    config: RunConfig, start: InitialWeights, classes: tuple[str, ...] | None = None
) -> RunConfig:
    """Return the config of a run that starts from the weights.

    The model's settings are those of the weights. A setting that the user has given stays, such as
    another patch size, also if it equals its default.

    Args:
        config: the run's settings, not resolved, or resolved by an earlier attempt.
        start: the weights.
        classes: the run's classes; None if they are not known.

    Raises:
        ConfigError: if a setting contradicts the weights.
    """
    settings = config.model_dump(mode="json")
    chosen = _set_by_user(config)
    implied = {"model": start.settings}
    for key in _DECIDED:
        _check(f"model.{key}", chosen.get(key), start.settings.get(key), start)
    if any(chosen.get(key) is None for key in _DIMENSIONS):  # else the size decides nothing
        _check("model.size", chosen.get("size"), start.settings.get("size"), start)
    reference = {
        "init": start.reference,
        "download": config.model.download,
    }
    followed = _with_suitable_head(start, classes)
    model = config_files.merge_settings(followed, {**chosen, **reference})
    trainable = config.training.trainable
    is_frozen = start.kind == "file" or start.head_only
    if trainable is None and (config.preset is None or not is_frozen):
        is_labelled = load_objective(config.objective.name).uses_labels
        is_taught = config.training.teacher is not None
        trainable = "head" if is_frozen and is_labelled and not is_taught else "all"
    changes = {
        "data": _of_images(config, start),
        "training": {"trainable": trainable, **_last_blocks(config, start)},
        "record": {"init_sha256": start.sha256, "set_by_user": _list_with(config, chosen)},
    }
    if start.head_only and trainable not in (None, "head"):
        settings = config_files.merge_settings(settings, _fine_tuning(config))
    settings = config_files.merge_settings({**settings, "model": model}, changes)
    return config_files.validate_config(_keep_in_plan(settings, flatten_settings(implied)))


def _last_blocks(config: RunConfig, start: InitialWeights) -> Settings:
    """Return how many blocks are trained where the model has fewer than by default.

    Raises:
        ConfigError: if the user has set more than it has.
    """
    depth, count = start.settings.get("depth"), config.training.last_blocks
    may_be_trained = config.training.trainable in (None, "last_blocks")
    if not isinstance(depth, int) or count <= depth or not may_be_trained:
        return {}
    is_set = _LAST_BLOCKS in _keys_set_by_user(config)
    if not is_set and count == TrainingConfig.model_fields["last_blocks"].default:
        return {"last_blocks": depth}
    raise ConfigError(
        f"training.last_blocks is {count}, but the model of model.init {start.origin} has "
        f"{counted(depth, 'block')}. Choose at most {depth}, or set training.trainable to all."
    )


def check_divisible(config: RunConfig, start: InitialWeights) -> None:
    """Check that the last blocks of the model can be trained, if they are to be.

    Args:
        config: the run's settings, which follow the weights.
        start: the weights.

    Raises:
        ConfigError: if the model cannot be divided, or has fewer blocks.
    """
    if config.training.trainable != "last_blocks":
        return
    from patchline.pipeline.models.layers.last_blocks import divisible
    from patchline.pipeline.models.model_building import build_on_meta

    side = config.data.image_size or start.image_size
    image = ImageSpec(
        channels=config.data.channels or start.channels,
        height=side,
        width=side,
        mean=config.data.mean or start.mean,
        std=config.data.std or start.std,
        resize="crop",
    )
    skeleton = build_on_meta(config.model, image, len(start.classes or ()) or 1)
    divisible(skeleton, config.training.last_blocks)


def _fine_tuning(config: RunConfig) -> Settings:
    """Return what follows from training more than the head of a network that was frozen before.

    Until the weights were found, they were taken for those of a warm start.
    """
    if config.record.set_by_user is None or config.record.init_sha256:
        return {}  # from a form, or resolved before
    last = config.training.trainable == "last_blocks"
    settings = recipe.LAST_BLOCKS if last else recipe.FINE_TUNING
    left = {*config.record.set_by_user, *["training.epochs"] * bool(config.training.time_limit)}
    return pick_settings(settings, lambda key, _: key not in left)


def without_initial_weights(config: RunConfig) -> RunConfig:
    """Return the config of a run whose own model has no champion yet: random initial weights.

    Raises:
        ConfigError: if only the head would be trained.
    """
    if config.training.trainable not in (None, "all"):
        raise ConfigError(
            f"model.init is {config.model.init}, but this model has no champion yet whose head "
            "could be trained. Set training.trainable to all, or model.init to other weights."
        )
    settings, defaults = config.model_dump(mode="json"), RunConfig().model_dump(mode="json")
    settings["model"]["init"] = None
    listed = _keys_set_by_user(config)
    for section, values in recipe.settings_for(str(config.model.init), None).items():
        for key, value in values.items():
            if settings[section][key] == value and f"{section}.{key}" not in listed:
                settings[section][key] = defaults[section][key]
    return config_files.validate_config(settings)


def _keys_set_by_user(config: RunConfig) -> set[str]:
    """Return the dotted keys that were listed as set by the user when the settings were read."""
    if config.record.set_by_user is not None:
        return set(config.record.set_by_user)
    return set(config.preset.keep) if config.preset else set()


def _list_with(config: RunConfig, chosen: Settings) -> list[str] | None:
    """Return the listed keys and those that the user has chosen besides, in a form."""
    if config.record.init_sha256:  # resolved before; its values also differ because of the weights
        return None if config.record.set_by_user is None else list(config.record.set_by_user)
    return sorted({*_keys_set_by_user(config), *flatten_settings({"model": chosen})})


def _with_suitable_head(start: InitialWeights, classes: tuple[str, ...] | None) -> Settings:
    """Return the settings of the weights, with a linear head for other classes.

    The hidden layer of a tanh head belongs to the classes of the pre-training (arXiv 2010.11929,
    section 3.2). It stays if the run has all of them, as a warm start does.
    """
    is_kept = classes is None or (start.classes and set(start.classes) <= set(classes))
    if start.settings.get("head") != "tanh" or is_kept:
        return start.settings
    return {**start.settings, "head": "linear"}


def _set_by_user(config: RunConfig) -> Settings:
    """Return the settings of the model that the user has set.

    That is what is listed, and every value that is not the default: a form sends all values. Of a
    config that was resolved before, such as that of a resumed run, every value is final.
    """
    model = config.model.architecture().model_dump(mode="json")
    if config.record.set_by_user is None and config.record.init_sha256:
        return _without_null_dimensions(model)
    name, embedding = config.model.name, config.model.patch_embedding.name
    names = {"name": name, "patch_embedding": {"name": embedding}}
    default = config_files.validate_config({"model": names}).model.model_dump(mode="json")
    defaults, keys = flatten_settings(default), _keys_set_by_user(config)
    chosen = pick_settings(
        model, lambda key, value: f"model.{key}" in keys or value != defaults.get(key)
    )
    if name != RunConfig().model.name:
        chosen["name"] = name
    if embedding not in (AUTO, patch_embedding_name(name, AUTO)):
        chosen["patch_embedding"] = {**chosen.get("patch_embedding", {}), "name": embedding}
    return _without_null_dimensions(chosen)


def _without_null_dimensions(model: Settings) -> Settings:
    return {
        key: value for key, value in model.items() if value is not None or key not in _OF_THE_SIZE
    }


def _check(key: str, chosen: object, implied: object, start: InitialWeights) -> None:
    """Refuse a setting that contradicts the weights."""
    if chosen is None or chosen == implied:
        return
    has = f"has {implied}" if implied is not None else "decides it"
    raise ConfigError(
        f"{key} is {chosen}, but model.init {start.origin} {has}. Leave out {key}, or choose other "
        "initial weights."
    )


def _of_images(config: RunConfig, start: InitialWeights) -> Settings:
    """Return the settings of the data that are not set: they follow the weights."""
    data = config.data
    if start.channels not in _CHANNELS:
        raise ConfigError(
            f"model.init {start.origin} takes images with {start.channels} channels, and Patchline "
            "reads greyscale and RGB images. Choose other initial weights."
        )
    channels = data.channels or start.channels
    mean, std = (_for_channels(each, channels) for each in (start.mean, start.std))
    is_set = (
        _RESIZE in _keys_set_by_user(config)
        or data.resize != DataConfig.model_fields["resize"].default
    )
    return {
        "image_size": data.image_size or start.image_size,
        "channels": channels,
        "mean": data.mean or mean,
        "std": data.std or std,
        "resize": data.resize if is_set else start.resize or data.resize,
    }


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels


def _keep_in_plan(settings: Settings, keys: Collection[str]) -> Settings:
    """Name the settings that a preset's plan must keep."""
    preset = settings.get("preset")
    if preset is None:
        return settings
    kept = {*preset["keep"], *keys, "data.image_size"}
    return {**settings, "preset": {**preset, "keep": sorted(kept)}}


_TRAINED = {
    "all": "all weights",
    "head": "the head alone",
    "head_then_all": "the head, then all weights",
    "last_blocks": "the head, then the last blocks",
}
REFERENCE_TAG = "patchline.initial_weights"


class StartingPoint(FrozenModel):
    """The settings of a run that starts from initial weights."""

    config: RunConfig
    weights: InitialWeights | None
    """None if the run's own model has no champion yet."""
    seen_before: SeenBefore = SeenBefore()
    """What the weights have seen of the run's images."""

    def notes(self) -> list[str]:
        """Return sentences for the user: what was found, and what was assumed."""
        weights = self.weights
        if weights is None:
            return ["the model has no champion yet: training starts from random weights"]
        trainable = self.config.training.trainable
        trained = f"; training {_TRAINED[trainable]}" if trainable else ""  # a plan decides later
        size = f"{weights.image_size}x{weights.image_size} pixels"
        return [
            f"initial weights: {weights.origin} ({weights.layout}, {size}){trained}",
            *weights.notes,
        ]

    def tags(self) -> dict[str, str]:
        """Return tags of the run that name its initial weights."""
        if self.weights is None:
            return {}
        tags = {REFERENCE_TAG: f"{self.weights.origin} ({self.weights.layout})"}
        if self.weights.license:
            tags[LICENSE_TAG] = self.weights.license
        return {**tags, INITIAL_RUN_TAG: self.weights.run_id} if self.weights.run_id else tags


def check_published(config: RunConfig, workspace: Path) -> None:
    """Find a file of weights or published ones, so that unsuitable ones fail before data is read.

    A version of a model or a run is found later, once the servers answer.

    Raises:
        ConfigError: if there are no such weights, or a setting contradicts them.
    """
    if config.model.init and recipe.is_published(config.model.init):
        find_starting_point(config, "", workspace)


def find_starting_point(
    config: RunConfig,
    data_name: str,
    workspace: Path,
    manifest_file: Path | None = None,
    classes: tuple[str, ...] | None = None,
) -> StartingPoint:
    """Find the initial weights that a config names, and return the config that follows them.

    Args:
        config: the run's settings, not resolved, with `model.init` set.
        data_name: the name of the run's model, unless the config names it.
        workspace: the folder `.patchline`, where the weights are kept.
        manifest_file: the run's manifest; its images that the weights have seen are counted.
        classes: the run's classes; if the weights have other classes, a tanh head is replaced.

    Raises:
        ConfigError: if there are no such weights, or a setting contradicts them.
    """
    model = config.model
    name = config.name or data_name
    heads = model.settings.get("num_heads")
    weights = finding.find(
        str(model.init),
        workspace,
        name,
        sha256=config.record.init_sha256,
        num_heads=heads,
        download=model.download,
    )
    if weights is None:
        return StartingPoint(config=without_initial_weights(config), weights=None)
    provenance = read_stored_provenance(weights_folder(workspace, weights.sha256))
    seen_images = SeenBefore(provenance=provenance.summary)
    if manifest_file:
        seen_images = count_seen_images(manifest_file, provenance)
    follows = with_initial_weights(config, weights, classes)
    check_divisible(follows, weights)
    return StartingPoint(
        config=follows,
        weights=weights,
        seen_before=seen_images,
    )
