"""The files that a job names: what another machine needs of them, and what it has already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from patchline.pipeline.config import RunConfig

SAME_PLACE = "the same place on all machines"
"""Annotates a path of a job whose files every machine has at that path, such as the images."""


class JobPaths(NamedTuple):
    """The paths of a job."""

    files: tuple[Path, ...]
    """Files and folders that the worker reads, if they exist, or writes."""
    same_place: tuple[Path, ...]
    """Paths of data that every machine has at the same path."""


def paths_of(job: BaseModel) -> JobPaths:
    """Return the paths in a job, absolute; those of a run's settings are not the worker's."""
    named = list(_find_named_paths(job))
    files = dict.fromkeys(path.absolute() for path, is_same in named if not is_same)
    same = dict.fromkeys(path.absolute() for path, is_same in named if is_same)
    return JobPaths(tuple(files), tuple(same))


def _find_named_paths(model: BaseModel) -> Iterator[tuple[Path, bool]]:
    for name, field in type(model).model_fields.items():
        is_same = SAME_PLACE in field.metadata
        yield from ((path, is_same or same) for path, same in _within(getattr(model, name)))


def _within(value: Any) -> Iterator[tuple[Path, bool]]:
    if isinstance(value, Path):
        yield value, False
    elif isinstance(value, BaseModel) and not isinstance(value, RunConfig):
        yield from _find_named_paths(value)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _within(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _within(each)
