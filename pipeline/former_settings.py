"""Settings of earlier versions: how a config that names one is read, and what is said of it.

A `config.yaml`, a stored request and the parameters of a schedule may have them. What a run
recorded among its settings is read as `record:`; what the program decides now is left out; of two
settings that did the same, one has the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
_NOTHING_RECORDED = (None, [], "auto", 1.0)
"""What these said where there was nothing to say."""
_THREADS = (
    ", except for training.thread_changes, as threads no longer change within a training run; the "
    "last bits of the weights may differ"
)


class Former(NamedTuple):
    """What became of a setting that no longer exists."""

    now: object
    """The value that every run has now; a config that names it loses nothing."""
    became: str
    """What decides it now, as a sentence without a full stop."""


DECIDED: dict[str, Former] = {
    "training.average_last": Former(
        None, "a plan averages the last weights where few images would choose an epoch"
    ),
    "training.shuffle_window": Former(
        1.0, "a plan shuffles images that do not fit into memory in windows"
    ),
    "training.full_size_from": Former(0.6, "images have their full size after 60% of the training"),
}
"""Former settings that the program decides, by dotted key."""


class Merged(NamedTuple):
    """A setting that another one has taken over."""

    key: str
    """The other setting."""
    values: Mapping[object, object]
    """Its value for each former one; None for what every run has by default."""


MERGED: dict[str, Merged] = {
    "training.class_weights": Merged(
        "training.class_balance", {"none": None, "balanced": "weights"}
    ),
    "training.sampling": Merged(
        "training.class_balance", {"uniform": None, "balanced": "sampling"}
    ),
    "training.refit": Merged("training.final_model", {False: None, True: "refit"}),
    "training.ensemble": Merged("training.final_model", {False: None, True: "ensemble"}),
}
"""Former settings whose values another setting has, by dotted key."""
_INSTEAD = {
    "training.max_epochs": "training.epochs",
    **{former: merged.key for former, merged in MERGED.items()},
}
"""Settings that do what a former one did, by its dotted key."""


def with_todays_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings, not yet checked, without those that no longer exist.

    Args:
        settings: nested like a config file.

    Returns:
        The settings, and a sentence for each thing that is read differently than it was written.
    """
    result, said = _with_record(settings)
    _refuse_refit(result)
    said += [*_with_one_length(result), *_with_merged(result)]
    for key, former in DECIDED.items():
        section, _, name = key.partition(".")
        values = result.get(section)
        if not isinstance(values, Mapping) or name not in values:
            continue
        result[section] = {each: value for each, value in values.items() if each != name}
        if values[name] != former.now:
            said.append(f"{key} {values[name]} is no longer a setting: {former.became}.")
    return result, said


def explain_former(name: str | None) -> str | None:
    """Return what became of a setting, in a sentence; None if there was none of that name.

    Args:
        name: the dotted key, or the flag.
    """
    key = (name or "").removeprefix("--").replace("-", "_")
    if key in _INSTEAD:
        return f"{name} is no longer a setting. Set {_INSTEAD[key]} instead."
    former = DECIDED.get(key)
    return f"{name} is no longer a setting: {former.became}. Leave it out." if former else None


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


def _with_merged(result: dict[str, Any]) -> Iterator[str]:
    """Read settings by the ones that have taken them over, and yield what is said of it.

    Args:
        result: the settings, whose sections are replaced.
    """
    for former, merged in MERGED.items():
        section, _, name = former.partition(".")
        values = result.get(section)
        if not isinstance(values, Mapping) or name not in values:
            continue
        value = values[name]
        given = {key: each for key, each in values.items() if key != name}
        if (today := merged.values.get(value, value)) is not None:
            given[merged.key.partition(".")[2]] = today
            yield f"{former} {str(value).lower()} is read as {merged.key} {today}."
        result[section] = given


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
