"""Turn a pydantic validation error into one sentence: the value, the rule, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from patchline.pipeline.errors import ConfigError

_RULES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "literal_error": "must be one of {expected}",
    "model_type": "must be a group of settings, not a single value",
    "dict_type": "must be a group of settings, not a single value",
    "missing": "is missing",
}
_BOTH = 2
"""Limits of a range."""


def sentence(error: ValidationError, model: type[BaseModel], prefix: str = "") -> ConfigError:
    """Return the first problem as a `ConfigError` that names the setting.

    Args:
        error: the validation error.
        model: the class that was validated; its fields are the spelling suggestions.
        prefix: the dotted path of the section, when only a part of the config was validated.
    """
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
    while path and path[-1].isdecimal():  # a value of a list
        path.pop()
    dotted = ".".join([prefix, *path] if prefix else path)
    if first["type"] == "extra_forbidden":
        if "." in path[-1]:
            nested = ": ".join(path[-1].split("."))
            return ConfigError(f"There is no setting '{path[-1]}'. In a file, write {nested}: ….")
        return unknown_key(dotted, _fields_beside(model, path))
    if first["type"] == "value_error":
        reason = str(first["msg"]).removeprefix("Value error, ")
        if not dotted or _section_at(model, path) is not None:  # it names its settings itself
            return ConfigError(f"{reason}.")
        return ConfigError(f"{dotted} is {_value(first['input'])}, but {reason}.")
    template = _RULES.get(first["type"])
    rule = template.format(**first.get("ctx", {})) if template else str(first["msg"])
    if first["type"] == "literal_error" and " or " not in rule:
        rule = rule.replace("one of ", "")
    limits = _range_text(model, path)
    remedy = f" Choose a value {limits}." if limits else ""
    if first["type"] == "missing":
        return ConfigError(f"{dotted} is missing. Add it.")
    return ConfigError(f"{dotted} is {_value(first['input'])}, but {rule}.{remedy}")


def _value(value: object) -> str:
    """Return a value as a user writes it in a file or behind a flag."""
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value)) or "an empty list"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) or "empty"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def unknown_key(dotted: str, valid_keys: Iterable[str]) -> ConfigError:
    """Return the error for a setting that does not exist, with the closest one that does."""
    parent, dot, key = dotted.rpartition(".")
    before = f"{parent}{dot}"
    names = sorted(valid_keys)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        remedy = f"Did you mean {before}{close[0]}?"
    elif names:
        remedy = f"Available settings: {', '.join(before + name for name in names)}."
    else:
        return ConfigError(f"There is no setting {dotted}: {parent} has none here. Remove it.")
    return ConfigError(f"There is no setting {dotted}. {remedy}")


def _section_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            return None
        inner = next((c for c in _classes_in(field.annotation)), None)
        if inner is None:
            return None
        model = inner
    return model


def _classes_in(annotation: Any) -> list[type[BaseModel]]:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]


def _fields_beside(model: type[BaseModel], path: list[str]) -> list[str]:
    section = _section_at(model, path[:-1])
    return list(section.model_fields) if section else []


def _range_text(model: type[BaseModel], path: list[str]) -> str:
    """Return the allowed range of a number with two limits, such as `from 1 to 1000`."""
    section = _section_at(model, path[:-1]) if path else None
    field = section.model_fields.get(path[-1]) if section and path else None
    if field is None or section is None:
        return ""
    schema = section.model_json_schema()["properties"].get(path[-1], {})
    options = [schema, *schema.get("anyOf", [])]
    words = {
        "minimum": "of at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
    }
    limits = {key: option[key] for option in options for key in words if key in option}
    if len(limits) < _BOTH:
        return ""  # the rule says it already
    if limits.keys() == {"minimum", "maximum"}:
        return f"from {limits['minimum']} to {limits['maximum']}"
    return " and ".join(words[key].format(limit) for key, limit in limits.items())
