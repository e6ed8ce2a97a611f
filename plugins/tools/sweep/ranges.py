"""What a search chooses from, for one setting: a range of numbers, or a few values.

A range is written `1e-4..1e-2`, values `a,b,c`; flags, files and the defaults of fields share this.
A range of numbers above 0 whose ends differ by a factor of ten or more is searched on a logarithmic
scale, unless ` linear` follows it; ` log` asks for that scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel

Value = bool | int | float | str | None
_RANGE = re.compile(r"\s*(?P<low>[^\s,]+?)\s*\.\.\s*(?P<high>[^\s,]+?)(?:\s+(?P<scale>\w+))?\s*")
_LOG_FROM = 10.0
"""A range is logarithmic if its ends differ by this factor or more."""
_FORM = "Write LOW..HIGH, such as 1e-4..1e-2, or values such as 64,128,256"


class NumberRange(FrozenModel):
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


class Choices(FrozenModel):
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


def parsed(key: str, given: object, *, integer: bool = False) -> Dimension:
    """Return what a file, a flag or a field gives for a setting.

    Args:
        key: of the setting, for messages.
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
