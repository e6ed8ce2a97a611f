"""Every setting that a run or a plugin has, and the search for one by words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import log1p
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.data.config import SHORT_OPTIONS
from patchline.pipeline.errors import PluginError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.installation import checkout
from patchline.pipeline.plugin_system.plugin_loader import Kind, config_class, list_installed

_SECTIONS: dict[Kind, str] = {
    "model": "model",
    "patch_embedding": "model.patch_embedding",
    "data_source": "data.options",
    "augmentation": "augmentation",
    "objective": "objective",
    "launcher": "launcher",
}
"""Where a run's settings have those of a plugin; stores have none, tools have flags."""
_NAMED = re.compile(r"(?<![\w.-])(?:--[a-z][\w-]*(?:\.[\w-]+)*|[a-z]\w*(?:\.[a-z]\w*)+)")
"""A flag, or a setting as a file names it."""
_WORD = re.compile(r"[a-z0-9]+")
_ENDINGS = re.compile(r"(?<=[a-z]{3})(?:ations?|ings?|ions?|ies|ed|es|s|e|y)$")
_NAME, _HELP, _DOCS = 4, 2, 1
"""What a word counts that is found in a setting's name, in its help, or in what the docs say."""

_NEAR = 3
"""A setting that counts less than the nearest one by more than this factor is left out."""


class Setting(FrozenModel):
    """A setting by the name that it has in a file; as a flag, a dash stands for each underscore."""

    name: str
    plugins: tuple[str, ...] = ()
    """The plugins that have it, as `KIND NAME`; none for a setting of every run and for a flag."""
    commands: tuple[str, ...]
    """The commands that take it as a flag."""
    default: str | None
    help: str
    docs: str | None
    """The page of the documentation that says most about it; None if none does, or in an
    installation without pages."""

    @classmethod
    def of(
        cls,
        name: str,
        default: object,
        said: str,
        *,
        plugins: tuple[str, ...] = (),
        command: str = "run",
    ) -> Self:
        """Return a setting with its help and default in words, and the page on it."""
        pages = [page for page, _ in _mentions(name)]
        if isinstance(default, tuple | list):
            default = " ".join(map(str, default))
        nothing = isinstance(default, type) or default in (None, False, "", PydanticUndefined, {})
        return cls(
            name=name,
            plugins=plugins,
            commands=(command,),
            default=None if nothing else str(getattr(default, "name", default)),
            help=" ".join(said.split()),
            docs=max(pages, key=pages.count) if pages else None,
        )

    @property
    def flag(self) -> str:
        """What is typed for it."""
        return f"--{self.name.replace('_', '-')}"


def settings_of_runs() -> Iterator[Setting]:
    """Yield the settings of every run, in the order of the file."""
    yield from _fields(RunConfig, "")


def settings_of_plugins() -> tuple[list[Setting], list[str]]:
    """Return the settings of all installed plugins, and why those of a broken plugin are unknown.

    What several plugins have with the same meaning is one setting.
    """
    each, errors = list[Setting](), list[str]()
    for entry in list_installed():
        if entry.kind not in _SECTIONS:
            continue
        try:
            settings = config_class(entry.kind, entry.name)
        except PluginError as error:
            errors.append(f"The settings of the plugin {entry.name} are not known: {error}")
        else:
            named = (f"{entry.kind} {entry.name}",)
            each += _fields(settings, f"{_SECTIONS[entry.kind]}.", named)
    return join_same(each), errors


def join_same(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings, with those of the same name and meaning as one."""
    same: dict[tuple[str, str], Setting] = {}
    for setting in settings:
        first = same.setdefault((setting.name, setting.help), setting)
        if first is not setting:
            both = {
                "plugins": tuple(dict.fromkeys((*first.plugins, *setting.plugins))),
                "commands": tuple(dict.fromkeys((*first.commands, *setting.commands))),
                "default": first.default if first.default == setting.default else None,
            }
            same[setting.name, setting.help] = first.model_copy(update=both)
    return list(same.values())


def search_settings(settings: Sequence[Setting], words: Sequence[str]) -> list[Setting]:
    """Return the settings that all words have to do with, the nearest first.

    A word is looked for in the name, the help and the sentences of the documentation that name the
    setting, whatever its ending; a word that few settings have counts more. If no setting has all
    words, those that have most are returned.
    """
    stems_of_query = {_stem(word) for text in words for word in _WORD.findall(text.lower())}
    counts = [_counts(setting, stems_of_query) for setting in settings]
    having = Counter(word for each in counts for word in each)
    most = max(map(len, counts), default=0)
    near = [
        (sum(count * log1p(len(counts) / having[word]) for word, count in each.items()), setting)
        for each, setting in zip(counts, settings, strict=True)
        if most and len(each) == most
    ]
    best = max((score for score, _ in near), default=0)
    ranked = sorted(near, key=lambda pair: -pair[0])
    return [setting for score, setting in ranked if score >= best / _NEAR]


def _counts(setting: Setting, stems_of_query: set[str]) -> dict[str, int]:
    """Return those of the words that a setting has to do with, and what each counts."""
    places = (
        (_NAME, " ".join((setting.name, *setting.plugins))),
        (_HELP, setting.help),
        (_DOCS, " ".join(text for _, text in _mentions(setting.name))),
    )
    stems = [(weight, _stems(text)) for weight, text in places]
    counts = {
        word: sum(weight for weight, known in stems if word in known) for word in stems_of_query
    }
    return {word: count for word, count in counts.items() if count}


@cache
def _stems(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()))


def _stem(word: str) -> str:
    return _ENDINGS.sub("", word)


def words_of_none(settings: Sequence[Setting], words: Sequence[str]) -> list[str]:
    """Return the words that no setting has to do with."""
    stems = {word: {_stem(part) for part in _WORD.findall(word.lower())} for word in words}
    return [word for word in words if not any(_counts(each, stems[word]) for each in settings)]


def _fields(
    section: type[BaseModel], prefix: str, plugins: tuple[str, ...] = ()
) -> Iterator[Setting]:
    for key, field in section.model_fields.items():
        kind: Any = field.annotation
        if prefix == "" and key == "record":  # written by runs
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{key}.", plugins)
        elif key != "options":  # the settings of a data source
            short = prefix == "data.options." and key in SHORT_OPTIONS
            default = field.get_default(call_default_factory=True, validated_data={})
            name = f"data.{key}" if short else f"{prefix}{key}"
            said = field.description or ""
            if key == "name" and issubclass(section, PluginChoice):
                said = section.describe_name(prefix.strip("."))
            yield Setting.of(name, default, said, plugins=plugins)


def _mentions(name: str) -> list[tuple[str, str]]:
    """Return the page and the text of each paragraph of the documentation that names a setting."""
    return _paragraphs().get(name, [])


@cache
def _paragraphs() -> dict[str, list[tuple[str, str]]]:
    """Return the paragraphs of the documentation by the settings and flags that they name."""
    root = checkout()
    named: dict[str, list[tuple[str, str]]] = {}
    for page in sorted((root / "docs").rglob("*.md")) if root else []:
        for text in page.read_text("utf-8").split("\n\n"):
            for spelt in set(_NAMED.findall(text)):
                name = spelt.removeprefix("--").replace("-", "_")
                named.setdefault(name, []).append((_page(page, root), text))
    return named


def _page(page: Path, root: Path | None) -> str:
    return page.relative_to(root).as_posix() if root else page.name
