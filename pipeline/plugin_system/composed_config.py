"""Compose the settings of the command line from the config classes of the chosen plugins.

The plugin names are read first, from the flags and the file. Then one pydantic model is built in
which each plugin's settings are next to its name, so that they have types, help and spelling
suggestions like every other setting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, get_args

from cyclopts import Parameter
from pydantic import BaseModel, ConfigDict, create_model, model_validator
from pydantic.fields import FieldInfo

from patchline.pipeline.config import ModelChoice, PatchEmbeddingChoice, PluginChoice, RunConfig
from patchline.pipeline.config_files import data_settings
from patchline.pipeline.data.config import SHORT_OPTIONS, DataConfig, source_of
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system.plugin_loader import Kind, config_class
from patchline.pipeline.plugin_system.plugin_settings import patch_embedding_name
from patchline.pipeline.workspace.files.data_kinds import data_kind
from patchline.plugin_api import NO_PATCH_EMBEDDING

Settings = dict[str, Any]
_SWITCHES = ("--dry-run", "--rehearse", "--schema", "--fresh", "--json", "--debug")
"""Flags without a value."""


class ComposedModel(FrozenModel):
    """A model composed of the fields of others, which carry their help: it has no source."""

    model_config = ConfigDict(use_attribute_docstrings=False)


class _FlagValues(ComposedModel):
    """Settings of the command line, which gives `null` as text; YAML reads it as None."""

    @model_validator(mode="before")
    @classmethod
    def _read_nulls(cls, values: Any) -> Any:
        return _with_nulls(cls, values)


def value_of_flag(arguments: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag, given as `--flag value` or `--flag=value`."""
    value = None
    for position, argument in enumerate(arguments):
        name, equals, given = argument.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if equals:
            value = given
        elif position + 1 < len(arguments):
            value = arguments[position + 1]
    return value


def compose_config(
    arguments: Sequence[str], settings: Settings, sections: Collection[str] = RunConfig.model_fields
) -> type[BaseModel]:
    """Return the class of the settings that can be set together with these arguments.

    Args:
        arguments: arguments of the command line, of which only the plugin names are read.
        settings: settings of the preset and the file, which the arguments override.
        sections: sections of a run's settings that the class has; by default all.

    Raises:
        PluginError: for a plugin that is unknown or broken.
    """
    defaults = RunConfig()

    def chosen(*path: str) -> str:
        value: Any = settings
        default: Any = defaults
        for key in (*path, "name"):
            value = value.get(key) if isinstance(value, dict) else None
            default = getattr(default, key)
        flag = f"--{'.'.join(path).replace('_', '-')}.name"
        named = value_of_flag(arguments, flag)
        return named or (value if isinstance(value, str) else str(default))

    model, embedding = chosen("model"), chosen("model", "patch_embedding")
    source = value_of_flag(arguments, "--data.source") or _data_source(arguments, settings)
    embedding_class = _embedding_class(patch_embedding_name(model, embedding))
    model_class = _choice_class(
        "model",
        model,
        ModelChoice,
        patch_embedding=(embedding_class, _document_field(ModelChoice, "patch_embedding", None)),
        init=_field_of(ModelChoice, "init"),
        download=_field_of(ModelChoice, "download", flags=("--model.download", "--download")),
    )
    data_class = _replace_fields(
        DataConfig, DataConfig.model_fields, options=_options_class(source)
    )
    others: tuple[Kind, ...] = ("augmentation", "objective", "launcher")
    return _replace_fields(
        RunConfig,
        sections,
        data=data_class,
        model=model_class,
        **{kind: _choice_class(kind, chosen(kind), PluginChoice) for kind in others},
    )


def compose_launcher(arguments: Sequence[str]) -> type[BaseModel]:
    """Return the class of the launcher's settings alone, for a command that trains nothing.

    Raises:
        PluginError: for a launcher that is unknown or broken.
    """
    name = value_of_flag(arguments, "--launcher.name") or RunConfig().launcher.name
    chosen = _choice_class("launcher", name, PluginChoice)
    field = (chosen, _document_field(RunConfig, "launcher", None))
    return create_model("Launched", __base__=_FlagValues, launcher=field)


def _with_nulls(section: type[BaseModel], values: Any) -> Any:
    """Return what was given with None for each `null` that the setting's type allows."""
    if not isinstance(values, Mapping):
        return values
    read = dict(values)
    for key, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and key in read:
            read[key] = _with_nulls(kind, read[key])
        elif read.get(key) == "null" and NoneType in get_args(kind):
            read[key] = None
    return read


def _data_source(arguments: Sequence[str], settings: Settings) -> str:
    """Return the source that the argument DATA, or else the file, chooses."""
    argument = _data_argument(arguments)
    given: Any = data_settings(argument, None).get("data") or settings.get("data")
    given = given if isinstance(given, dict) else {}
    source, path = given.get("source"), given.get("path")
    if isinstance(source, str):
        return source
    return source_of(path) if isinstance(path, str) else DataConfig().source


def _data_argument(arguments: Sequence[str]) -> str | None:
    """Return the first argument that is neither a flag nor, most likely, the value of one."""
    before = ""
    for argument in arguments:
        is_flag = argument.startswith("-")
        may_be_value = before.startswith("--") and "=" not in before and before not in _SWITCHES
        if not is_flag and (not may_be_value or data_kind(argument) not in ("folder", "unknown")):
            return argument
        before = argument
    return None


def _options_class(source: str) -> type[BaseModel]:
    """Return the settings of a data source; some have a short flag, `--data.image-column`."""
    plugin_class = config_class("data_source", source)
    fields: dict[str, Any] = {}
    for key, field in plugin_class.model_fields.items():
        flag = key.replace("_", "-")
        names = (f"--data.{flag}", f"--data.options.{flag}")
        annotation = _annotation(field)
        short = key in SHORT_OPTIONS
        fields[key] = (Annotated[annotation, Parameter(name=names)] if short else annotation, field)
    return create_model(plugin_class.__name__, __base__=ComposedModel, **fields)


def _embedding_class(name: str) -> type[BaseModel]:
    if name == NO_PATCH_EMBEDDING:
        field = (str, _document_field(PatchEmbeddingChoice, "name", name))
        return create_model(PatchEmbeddingChoice.__name__, __base__=ComposedModel, name=field)
    return _choice_class("patch_embedding", name, PatchEmbeddingChoice)


def _choice_class(
    kind: Kind, name: str, choice: type[PluginChoice], **inner: Any
) -> type[BaseModel]:
    """Return a plugin's config class with the plugin's name as an additional first field."""
    plugin_class = config_class(kind, name)
    said = choice.describe_name(kind)
    named = FieldInfo(default=name, description=said, validate_default=False)
    fields: dict[str, Any] = {"name": (str, named), **inner}
    for key, field in plugin_class.model_fields.items():
        fields[key] = (_annotation(field), field)
    return create_model(f"{name}_{kind}", __base__=ComposedModel, **fields)


def _replace_fields(
    section: type[BaseModel], kept: Collection[str], **classes: type[BaseModel]
) -> type[BaseModel]:
    """Return the section with the kept fields, some of them replaced by other classes."""
    fields: dict[str, Any] = {}
    for key, field in section.model_fields.items():
        # --preset is the command's own; nobody sets the record
        if key in ("preset", "record") or key not in kept:
            continue
        if key in classes:
            # A plugin without settings has no flag.
            shown = Parameter(show=bool(classes[key].model_fields))
            fields[key] = (Annotated[classes[key], shown], _document_field(section, key, None))
        else:
            fields[key] = (_annotation(field), field)
    return create_model(section.__name__, __base__=_FlagValues, **fields)


def _field_of(
    section: type[BaseModel], key: str, flags: tuple[str, ...] = ()
) -> tuple[Any, FieldInfo]:
    """Return a field of a section, with flags of its own instead of the usual one."""
    field = section.model_fields[key]
    annotation: Any = field.annotation
    return Annotated[annotation, Parameter(name=flags, negative=())] if flags else annotation, field


def _annotation(field: FieldInfo) -> Any:
    return field.annotation


def _document_field(section: type[BaseModel], key: str, default: Any) -> FieldInfo:
    """Return a field with the help text of a section's field and the given default."""
    description = section.model_fields[key].description
    return FieldInfo(default=default, description=description, validate_default=False)
