"""The space of a search: which settings vary, over which values, and what a trial's config is.

A field of a config class, also of a plugin's, carries its default range as
`json_schema_extra={"sweep": "1e-4..1e-2"}`, written as on the command line.

A range is written `1e-4..1e-2`, values `a,b,c`; flags, files and the defaults of fields share this.
A range of numbers above 0 whose ends differ by a factor of ten or more is searched on a logarithmic
scale, unless ` linear` follows it; ` log` asks for that scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

import yaml
from pydantic import ConfigDict
from pydantic.fields import FieldInfo

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.config_files import Settings, merge_settings
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.plugin_system.plugin_loader import Kind, config_class
from patchline.plugin_api import NO_PATCH_EMBEDDING

Value = bool | int | float | str | None
_RANGE = re.compile(r"\s*(?P<low>[^\s,]+?)\s*\.\.\s*(?P<high>[^\s,]+?)(?:\s+(?P<scale>\w+))?\s*")
_LOG_FROM = 10.0
"""A range is logarithmic if its ends differ by this factor or more."""
_FORM = "Write LOW..HIGH, such as 1e-4..1e-2, or values such as 64,128,256"


class NumberRange(DocumentedModel):
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool
    """Whether the logarithm is searched evenly."""
    integer: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        """Its first and its last value."""
        kind = int if self.integer else float
        return kind(self.low), kind(self.high)

    def contains(self, value: object) -> bool:
        """Return whether a value of a config lies in the range."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= float(value) <= self.high  # type: ignore[arg-type]

    def including(self, value: object) -> NumberRange:
        """Return the range, widened to include a number if it is one that it can include."""
        if isinstance(value, bool) or not isinstance(value, int | float) or self.contains(value):
            return self
        if self.log and value <= 0:
            return self
        low, high = min(self.low, value), max(self.high, value)
        return self.model_copy(update={"low": float(low), "high": float(high)})

    def text(self) -> str:
        """Return the range as it is typed, with its scale."""
        low, high = (f"{end:g}" for end in (self.low, self.high))
        return f"{low}..{high} {'log' if self.log else 'linear'}"


class Choices(DocumentedModel):
    """A few values, in no order."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """All values."""
        return self.values

    def contains(self, value: object) -> bool:
        """Return whether a value of a config is one of them."""
        return value in self.values

    def text(self) -> str:
        """Return the values as they are typed."""
        return ",".join(shown(value) for value in self.values)


Dimension = NumberRange | Choices


def shown(value: object) -> str:
    """Return a value as a user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parse_dimension(key: str, given: object, *, integer: bool = False) -> Dimension:
    """Return what a file, a flag or a field gives for a setting.

    Args:
        key: the setting's dotted key, for messages.
        given: text such as `1e-4..1e-2` or `a,b`, a list of values, or a mapping with low, high and
            optionally scale.
        integer: whether the setting is a whole number.

    Raises:
        ConfigError: if it is none of these.
    """
    if isinstance(given, Mapping):
        return _of_mapping(key, given, integer=integer)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _choices(key, list(given))
    text = shown(given)
    match = _RANGE.fullmatch(text)
    if match:
        return _range(key, match["low"], match["high"], match["scale"], integer=integer)
    return _choices(key, [_value(part) for part in text.split(",")])


def _of_mapping(key: str, given: Mapping[Any, Any], *, integer: bool) -> NumberRange:
    unknown = sorted(map(str, given.keys() - {"low", "high", "scale"}))
    if unknown or not {"low", "high"} <= given.keys():
        problem = f"has no {unknown[0]}" if unknown else "needs both low and high"
        raise ConfigError(f"The range of {key} {problem}. Write low, high and optionally scale.")
    scale = given.get("scale")
    return _range(key, given["low"], given["high"], scale, integer=integer)


def _range(key: str, low: object, high: object, scale: object, *, integer: bool) -> NumberRange:
    ends = [_number(key, end) for end in (low, high)]
    whole = all(float(end).is_integer() for end in ends)
    if integer and not whole:
        raise ConfigError(
            f"The range of {key} is {low}..{high}, but the setting is a whole number. Write whole "
            "numbers."
        )
    first, last = float(ends[0]), float(ends[1])
    if first >= last:
        raise ConfigError(
            f"The range of {key} is {low}..{high}, but its low end must be below its high end. "
            f"{_FORM}."
        )
    return NumberRange(low=first, high=last, log=_is_log(key, first, last, scale), integer=integer)


def _is_log(key: str, low: float, high: float, scale: object) -> bool:
    kinds: tuple[Literal["log"], Literal["linear"]] = ("log", "linear")
    if scale is None:
        return low > 0 and high / low >= _LOG_FROM
    if scale not in kinds:
        raise ConfigError(
            f"The range of {key} has the scale {scale!r}, which does not exist. Write log or "
            "linear."
        )
    if scale == "log" and low <= 0:
        raise ConfigError(
            f"The range of {key} begins at {low:g}, but a logarithmic range must begin above 0. "
            "Raise its low end, or write linear."
        )
    return scale == "log"


def _number(key: str, end: object) -> float:
    value = _value(end) if isinstance(end, str) else end
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"The range of {key} has the end {end!r}, which is no number. {_FORM}.")
    return value


def _choices(key: str, values: list[Any]) -> Choices:
    for value in values:
        if not isinstance(value, bool | int | float | str | None):
            raise ConfigError(f"The values of {key} include {value!r}, which is a group. {_FORM}.")
    distinct = list(dict.fromkeys((type(value), value) for value in values))
    only = [value for _, value in distinct]
    if len(only) < 2 or "" in only:  # noqa: PLR2004 - two values are a choice
        given = ",".join(map(shown, values))
        raise ConfigError(
            f"The space of {key} is {given!r}, which leaves nothing to choose. {_FORM}; a fixed "
            f"value is set by --{key.replace('_', '-')} instead."
        )
    return Choices(values=tuple(only))


def _value(text: object) -> Any:
    """Return a value as YAML reads it; `1e-4` is a number, too."""
    text = str(text).strip()
    value = yaml.safe_load(text) if text else ""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


DEFAULT_RANGE = "sweep"
"""Key of a field's default range in its JSON schema."""
_ONE_READING = "the images are read, split and decoded once for all trials"
_LENGTH = "trials are compared after equal numbers of epochs"
_EQUAL_TERMS = "all trials are compared on equal terms"
_ONE_START = "all trials start from the same weights"
_FIXED: dict[str, str] = {
    "data": _ONE_READING,
    "seed": "the best of several seeds is luck, so the final fits vary it instead",
    "name": "it names the study's experiment",
    "preset": "the plan is made once, and its settings are where the search begins",
    "record": "it is what the plan has decided",
    "launcher": "it changes no result",
    "evaluation": "it changes no weights",
    "promotion": "it changes no weights",
    "objective": _EQUAL_TERMS,
    "model.init": _ONE_START,
    "model.download": _ONE_START,
    **{f"training.{key}": _LENGTH for key in ("epochs", "time_limit")},
    **{
        f"training.{key}": _EQUAL_TERMS
        for key in (
            *("folds", "final_model", "trainable", "teacher", "device", "threads", "processes"),
        )
    },
}
"""Settings that cannot be searched, and sections of them, with the reason."""
_PLUGINS: dict[str, Kind] = {
    "model.patch_embedding": "patch_embedding",
    "model": "model",
    "augmentation": "augmentation",
}
"""Sections that hold a plugin's name beside its settings; the longer path first."""


class SearchSpace(DocumentedModel):
    """The settings that a search varies, by dotted key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: dict[str, Dimension]

    @classmethod
    def of(cls, given: Mapping[str, Any], plan: RunConfig) -> Self:
        """Return the space that a user gives, or without one the default space.

        Args:
            given: nested settings with ranges or values, as in `space.yaml`.
            plan: the resolved config that the search begins with.

        Raises:
            ConfigError: for a setting that is unknown or cannot be searched, or a bad value.
        """
        space = cls(dimensions=dict(_parse_given(given, plan)) if given else dict(_default(plan)))
        if not space.dimensions:
            raise ConfigError(
                "The search space is empty: no setting of this model and its training has a "
                "default range. Give one, such as --sweep.space.optimizer.learning-rate 1e-4..1e-2."
            )
        for key, dimension in space.dimensions.items():
            for value in dimension.ends:
                _check(key, value, plan)
        return space

    def plan_values(self, plan: RunConfig) -> dict[str, Value] | None:
        """Return the plan's own values of the dimensions; None if one lies outside of its range."""
        values = {key: value_at(plan, key) for key in self.dimensions}
        inside = all(self.dimensions[key].contains(value) for key, value in values.items())
        return values if inside else None

    def outside(self, plan: RunConfig) -> list[str]:
        """Return the keys whose ranges do not contain the plan's value."""
        return [
            key for key, dim in self.dimensions.items() if not dim.contains(value_at(plan, key))
        ]

    def config_of(self, plan: RunConfig, values: Mapping[str, Value]) -> RunConfig:
        """Return the config of a trial: the plan with other values.

        A setting that only another plugin than the chosen one has is left out.

        Raises:
            PipelineError: if the values do not fit each other.
        """
        settings: Settings = plan.model_dump(mode="json")
        names = {key: value for key, value in values.items() if _names_a_plugin(key)}
        for key, value in names.items():
            settings = merge_settings(settings, _nest(key, value))
        for key, value in values.items():
            if key not in names and _exists(settings, key):
                settings = merge_settings(settings, _nest(key, value))
        return config_files.validate_config(settings)

    def resolved(
        self, plan: RunConfig, values: Mapping[str, Value], data: IngestedData
    ) -> RunConfig:
        """Return the config of a trial, resolved against the images; see `config_of`."""
        return ingestion.resolve(self.config_of(plan, values), data)


def value_at(config: RunConfig, key: str) -> Any:
    """Return the value of a setting by its dotted key; None if there is none."""
    return flatten_settings(config.model_dump(mode="json")).get(key)


def normalize_settings(given: Mapping[str, Any]) -> Settings:
    """Return nested settings with underscores in their keys, without those that are not set."""
    kept: Settings = {}
    for name, value in given.items():
        key = str(name).replace("-", "_")
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            inner = normalize_settings(value)
            if inner:
                kept[key] = inner
        elif value is not None:
            kept[key] = value
    return kept


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse what can be refused before any data is read: settings that must not vary, bad ranges.

    Raises:
        ConfigError: for the first one.
    """
    for key, value in _leaves(given):
        _check_searchable(key)
        parse_dimension(key, value)


def _parse_given(given: Mapping[str, Any], plan: RunConfig) -> Iterator[tuple[str, Dimension]]:
    for key, value in _leaves(given):
        _check_searchable(key)
        yield key, parse_dimension(key, value, integer=_is_integer(_field_at(plan, key)))


def _leaves(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and what is given for them; `{low, high}` is a range."""
    for name, value in given.items():
        key = f"{prefix}{str(name).replace('-', '_')}"
        is_section = isinstance(value, Mapping) and not {"low", "high"} & value.keys()
        if is_section:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _check_searchable(key: str) -> None:
    """Refuse a setting that has to be the same in all trials.

    Raises:
        ConfigError: with the reason.
    """
    parts = key.split(".")
    for end in range(1, len(parts) + 1):
        reason = _FIXED.get(".".join(parts[:end]))
        if reason:
            raise ConfigError(f"{key} cannot be searched: {reason}. Remove it from the space.")


def _check(key: str, value: Value, plan: RunConfig) -> None:
    """Refuse a value that the setting does not take.

    Raises:
        ConfigError: as for a run with that value.
    """
    try:
        config_files.validate_config(
            merge_settings(plan.model_dump(mode="json"), _nest(key, value))
        )
    except (ConfigError, PluginError) as error:
        raise type(error)(f"The search space cannot be used: {error}") from error


def _default(plan: RunConfig) -> Iterator[tuple[str, Dimension]]:
    """Yield the settings with a default range, each widened to include the plan's value."""
    for key, field in _fields(plan):
        extra = field.json_schema_extra
        given = extra.get(DEFAULT_RANGE) if isinstance(extra, dict) else None
        if given is None or not _matters(key, plan):
            continue
        dimension = parse_dimension(key, given, integer=_is_integer(field))
        value = value_at(plan, key)
        if isinstance(dimension, NumberRange):
            dimension = dimension.including(value)
        elif isinstance(dimension, Choices) and not dimension.contains(value):
            dimension = Choices(values=(*dimension.values, value))
        if dimension.contains(value):
            yield key, dimension


def _matters(key: str, plan: RunConfig) -> bool:
    """Return whether a setting has an effect with the plan's others."""
    if key == "optimizer.layer_decay":
        return plan.model.init is not None
    if key in ("training.mixup", "training.cutmix"):
        return plan.training.trainable != "last_blocks"
    return True


class _Section(NamedTuple):
    path: str
    fields: Mapping[str, FieldInfo]


def _sections(plan: RunConfig) -> Iterator[_Section]:
    """Yield the sections that can be searched, with the fields of the chosen plugins."""
    for name in ("optimizer", "training"):
        yield _Section(name, type(getattr(plan, name)).model_fields)
    for path, kind in _PLUGINS.items():
        choice = plan.model.patch_embedding if kind == "patch_embedding" else getattr(plan, path)
        if choice.name != NO_PATCH_EMBEDDING:
            yield _Section(path, config_class(kind, choice.name).model_fields)


def _fields(plan: RunConfig) -> Iterator[tuple[str, FieldInfo]]:
    for section in _sections(plan):
        for name, field in section.fields.items():
            yield f"{section.path}.{name}", field


def _field_at(plan: RunConfig, key: str) -> FieldInfo | None:
    return dict(_fields(plan)).get(key)


def _is_integer(field: FieldInfo | None) -> bool:
    """Return whether a setting takes whole numbers, and no others."""
    kinds = set(_kinds(field.annotation)) if field else set()
    return int in kinds and float not in kinds


def _kinds(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_args(annotation):
        for part in get_args(annotation):
            yield from _kinds(part)
    else:
        yield annotation


def _names_a_plugin(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name == "name" and section in _PLUGINS


def _exists(settings: Settings, key: str) -> bool:
    """Return whether a plugin's setting is one of the plugin that is chosen; others always are."""
    for path, kind in _PLUGINS.items():
        name = key.removeprefix(f"{path}.")
        if name != key and "." not in name:
            own = config_class(kind, flatten_settings(settings)[f"{path}.name"])
            return name in own.model_fields
    return True


def _nest(key: str, value: Value) -> Settings:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)
