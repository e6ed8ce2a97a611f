"""Settings of earlier versions: how a config that names one is read, and what is said of it.

A `config.yaml`, a stored request and the parameters of a schedule may have them. What a run
recorded among its settings is read as `record:`; what the program decides now is left out; of two
settings that did the same, one has the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from patchline.pipeline.presets import DEFAULT, NONE
from patchline.pipeline.training.config import DEFAULT_EPOCHS
from patchline.pipeline.training.record import TrainingRecord

_RECORDED = {
    "training": (
        *(*TrainingRecord.model_fields, "extends", "teacher_sha256", "thread_changes"),
        *("average_last", "shuffle_window"),
    ),
    "model": ("init_sha256",),
}
"""Where earlier versions had the fields of a record."""
_NOTHING_RECORDED: tuple[object, ...] = (None, [], "auto", 1.0)
"""What these said where there was nothing to say."""
_THREADS = (
    ", except for training.thread_changes, as threads no longer change within a training run; the "
    "last bits of the weights may differ"
)


class Former(NamedTuple):
    """What happened to a setting that no longer exists."""

    now: object
    """The value that every run has now; a config that names it loses nothing."""
    became: str
    """What decides it now, as a sentence without a full stop."""
    plugin: str = ""
    """The plugin of its section that had it; empty if all runs did."""


_ASYMMETRIC = "the asymmetric loss has the exponents 4 and 0 and the clip 0.05 of its paper"
DECIDED: dict[str, Former] = {
    "optimizer.decay_fraction": Former(
        0.2, "the learning rate of wsd falls in the last 20% of training"
    ),
    "training.max_epochs": Former(None, "training.epochs is the maximum in training.time_limit"),
    "training.average_last": Former(
        None, "a plan averages the last weights where few images would choose an epoch"
    ),
    "training.shuffle_window": Former(
        1.0, "a plan shuffles images that do not fit into memory in windows"
    ),
    "training.full_size_from": Former(0.6, "images have their full size after 60% of the training"),
    "training.stochastic_depth_ramp": Former(
        0.0, "the model's stochastic depth is constant during training"
    ),
    "training.patch_dropout_until": Former(
        1.0, "the model's patch dropout is constant during training"
    ),
    "training.accumulation": Former(1, "batches are divided where the device is out of memory"),
    "training.retries_after_divergence": Former(
        2, "training restarts at most twice after a loss or gradient that is not finite"
    ),
    "training.token_views": Former(2, "the tokens of two views of each image are stored"),
    "training.teacher_weight": Former(0.5, "the teacher is half of the target of a labelled image"),
    "training.teacher_temperature": Former(1.0, "the teacher's logits are not divided"),
    "training.teacher_views": Former(2, "the teacher predicts each image and its mirror image"),
    "training.asymmetric_gamma_neg": Former(4.0, _ASYMMETRIC),
    "training.asymmetric_gamma_pos": Former(0.0, _ASYMMETRIC),
    "training.asymmetric_clip": Former(0.05, _ASYMMETRIC),
    "data.min_new_images": Former(1, "`patchline data watch` takes --min-new-images"),
    "launcher.wait_seconds": Former(300, "nodes have 300 s to get the resources", "ray"),
    "evaluation.test_time_averaging": Former(
        "off", "model.test_time_flip predicts each image together with its mirror image"
    ),
    "evaluation.gallery_size": Former(24, "a gallery of the report has at most 24 images"),
    "evaluation.small_sample": Former(30, "slices of fewer than 30 images are marked"),
    "promotion.class_min_images": Former(20, "a class is checked with at least 20 compared images"),
    "promotion.label_set_metric": Former("mAP", "mAP decides the promotion of sets of labels"),
}
"""Former settings that the program decides, by dotted key."""


_FLAGS = {
    "--max-batch": "a server computes at most 16 images together",
    "--record-mib": "a folder of recorded traffic keeps the latest 256 MiB",
    "--sweep.first-rung": "there are at most two rungs before the end of a trial",
}
"""Former flags of commands that are no settings of a run, and what decides them now."""


class Merged(NamedTuple):
    """Which setting has the value of one that no longer exists."""

    setting: str
    """Its dotted key."""
    read: Callable[[Any, Any], Any]
    """Returns its value, given the former one and its own, which is None unless it is given."""
    remedy: str
    """What to give instead, as a sentence without a full stop."""


def _stricter(limit: Any, own: Any) -> Any:
    numbers = isinstance(limit, (int, float)) and isinstance(own, (int, float))
    return min(limit, own) if numbers else limit  # what is no number is refused later


def _percentiles(given: Any, own: Any) -> Any:
    if own is not None:
        return own
    return [f"{each}%" for each in given] if isinstance(given, (list, tuple)) else given


def _one_of(**values: str | None) -> Callable[[Any, Any], Any]:
    """Return what reads former values as others, and as nothing where every run has that now."""

    def read(former: Any, own: Any) -> Any:
        new = values.get(str(former).lower(), former)  # what was never a value is refused later
        return own if new is None else new

    return read


MERGED: dict[str, Merged] = {
    "promotion.better_than_champion": Merged(
        "promotion.significance",
        lambda required, own: 1.0 if required is False else own,
        "Set promotion.significance to 1",
    ),
    "training.class_weights": Merged(
        "training.class_balance",
        _one_of(none=None, balanced="weights"),
        "Set training.class_balance",
    ),
    "training.sampling": Merged(
        "training.class_balance",
        _one_of(uniform=None, balanced="sampling"),
        "Set training.class_balance",
    ),
    "training.refit": Merged(
        "training.final_model", _one_of(false=None, true="refit"), "Set training.final_model"
    ),
    "training.ensemble": Merged(
        "training.final_model", _one_of(false=None, true="ensemble"), "Set training.final_model"
    ),
    "promotion.max_calibration_error": Merged(
        "promotion.maximum.ece", _stricter, "Set promotion.maximum.ece"
    ),
    "data.value_range_percentiles": Merged(
        "data.value_range", _percentiles, "Set data.value_range to percentiles, such as 1% 99%"
    ),
}
"""Former settings whose value another one has, by dotted key."""


def with_todays_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings, not yet checked, without those that no longer exist.

    Args:
        settings: nested like a config file.

    Returns:
        The settings, and a sentence for each thing that is read differently than it was written.
    """
    result, said = _with_record(settings)
    _refuse_refit(result)
    said += _with_one_length(result)
    no_longer: dict[str, Former | Merged] = {**DECIDED, **MERGED}
    for key, former in no_longer.items():
        section, _, name = key.partition(".")
        values = result.get(section)
        if not isinstance(values, Mapping) or name not in values:
            continue
        if isinstance(former, Former) and former.plugin not in ("", values.get("name")):
            continue
        result[section] = {each: value for each, value in values.items() if each != name}
        value = values[name]
        if isinstance(former, Former):
            if value != former.now:
                said.append(f"{key} {value} is no longer a setting: {former.became}.")
            continue
        own = _value_at(result, former.setting)
        new = own if value is None else former.read(value, own)
        if new != own:
            result = _with_value(result, former.setting, new)
            said.append(f"{key} {_words(value)} is read as {former.setting} {_words(new)}.")
    return result, said


def section_with_todays_names(section: str, values: Any) -> Any:
    """Return the settings of a section as `with_todays_names` does; anything else as it is."""
    if not isinstance(values, Mapping):
        return values
    return with_todays_names({section: values})[0][section]


def explain_former(name: str | None) -> str | None:
    """Return what happened to a setting, in a sentence; None if there was none of that name.

    Args:
        name: the dotted key, or the flag.
    """
    key = (name or "").removeprefix("--").replace("-", "_")
    became = DECIDED[key].became if key in DECIDED else _FLAGS.get(name or "")
    if became:
        return f"{name} is no longer a setting: {became}. Leave it out."
    if key in MERGED:
        return f"{name} is no longer a setting. {MERGED[key].remedy}."
    return None


def _value_at(settings: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key; None if there is none."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _with_value(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return settings with a value at a dotted key."""
    name, _, rest = key.partition(".")
    if not rest:
        return {**settings, name: value}
    inner = settings.get(name)
    return {**settings, name: _with_value(inner if isinstance(inner, Mapping) else {}, rest, value)}


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_record(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Move what earlier versions recorded among the settings to the record."""
    result, moved = dict(settings), dict[str, Any]()
    for section, names in _RECORDED.items():
        values = result.get(section)
        if isinstance(values, Mapping) and (former := [each for each in names if each in values]):
            result[section] = {key: each for key, each in values.items() if key not in former}
            moved |= {f"{section}.{key}": values[key] for key in former}
    if "set_by_user" in result:
        moved["set_by_user"] = result.pop("set_by_user")
    if moved and isinstance(given := result.get("record", {}), Mapping):
        record = {key.rpartition(".")[2]: value for key, value in moved.items()}
        result["record"] = {**record, **given}
    threads = _THREADS if moved.get("training.thread_changes") else ""
    said = f"What it records in `training:` and `model:` is read as `record:`{threads}."
    is_read = any(value not in _NOTHING_RECORDED for value in moved.values())
    return result, [said] if is_read else []


def _refuse_refit(result: dict[str, Any]) -> None:
    """Read `refit: false` as the best weights where it keeps a plan from a refit.

    Args:
        result: the settings, whose section `training` is replaced.
    """
    values, preset = result.get("training"), result.get("preset", DEFAULT)
    if not isinstance(values, Mapping) or values.get("refit") is not False or values.get("folds"):
        return
    is_set = "training.refit" in _kept(result) or not isinstance(preset, Mapping)
    if is_set and preset not in (None, NONE):
        result["training"] = {**values, "final_model": "best"}


def _kept(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that a preset lists as set by the user."""
    preset = settings.get("preset")
    return tuple(preset.get("keep") or ()) if isinstance(preset, Mapping) else ()


def _with_one_length(result: dict[str, Any]) -> list[str]:
    """Read the most epochs in a time limit as `epochs`, which had no effect beside it.

    Only epochs other than the default ones, or listed by a preset, were set by the user.

    Args:
        result: the settings, whose section `training` is replaced.

    Returns:
        A sentence if that changes what is trained.
    """
    values = result.get("training")
    if not isinstance(values, Mapping) or "max_epochs" not in values:
        return []
    most, limit, record = values["max_epochs"], values.get("time_limit"), result.get("record")
    given = {key: value for key, value in values.items() if key != "max_epochs"}
    result["training"] = given
    if limit:
        given["epochs"] = most
        return [f"training.max_epochs {most} is read as training.epochs."] if most else []
    if given.get("epochs") == DEFAULT_EPOCHS and "training.epochs" not in _kept(result):
        del given["epochs"]
    is_planned = isinstance(record, Mapping) and record.get("step_plan")
    alone = "is no longer a setting: without training.time_limit, training.epochs alone decides."
    return [f"training.max_epochs {most} {alone}"] if most and not is_planned else []
