"""The command `patchline sweep`: parses the arguments, searches, and prints the results.

Prefect is imported inside the functions, after the first message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from patchline.flows.commands.run import check_alone, compose_settings
from patchline.flows.commands.switches import (
    Json,
    Switch,
    add_flags,
    dump_given_flags,
    emit,
    terminal_lines,
)
from patchline.flows.progress.progress_display import display, show_progress
from patchline.flows.training.run_training import begin, enter_workspace, resume
from patchline.pipeline import config_errors, config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import merge_settings
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import find_program
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place
from patchline.plugins.tools.sweep.config import SweepConfig

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig
    from patchline.plugins.tools.sweep.final_fits import SweepSummary

_SPACE = ("model", "augmentation", "optimizer", "training")
"""Sections whose settings can be searched."""
_LISTED = 5
"""Trials in the summary of the terminal."""


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    settings_class = compose_settings(arguments)
    chosen: Any = _with_sweep(settings_class)

    def sweep(
        data: str | None = None,
        /,
        *,
        config: Path | None = None,
        preset: str | None = None,
        space: Annotated[Path | None, Parameter(name="--sweep.space")] = None,
        dry_run: Switch = False,
        fresh: Switch = False,
        resume: str | None = None,
        as_json: Annotated[Json, Parameter(help="Print one JSON object at the end.")] = False,
        settings: Any = None,
    ) -> None:
        """Search for better settings than the plan's, and register the best model.

        Parameters
        ----------
        data
            Folder of class folders, archive (zip, tar), table (CSV, Parquet, …), or SOURCE:NAME.
        config
            YAML file with settings; flags override it.
        preset
            Plan that the search begins with: quick, balanced (unless the file names another one),
            best, or none for the defaults.
        space
            YAML file with the settings to search. A single one is also given as a flag, such as
            --sweep.space.optimizer.learning-rate 1e-4..1e-2 or --sweep.space.model.depth 4,6,8.
        dry_run
            Print what would be searched: the plan, the search space, the number of trials and about
            how long training them takes. The data is read, and nothing is trained.
        fresh
            Reuse no results of earlier runs; compute every stage again.
        resume
            Resume an interrupted search: its MLflow id, its name, or `last`. It keeps its settings.
        settings
            Settings of the search, and of all its trials.
        """
        began = time.monotonic()
        if resume is not None:
            check_alone(arguments, "search")
            _search(partial(resume_sweep, resume), began, as_json=as_json)
            return
        flags = dump_given_flags(settings)
        own = flags.pop("sweep", {})
        ranges = _space_of(space, own.pop("space", None))
        request = config_files.build_config(data, preset_name=preset, file=config, flags=flags)
        own_settings = _check(own)
        if dry_run:
            from patchline.plugins.tools.sweep.outline import search_dry_run

            with show_progress(), worker_start.allow_prepared_workers():
                if request.preset:
                    worker_start.LocalLauncher().prepare(MODULE)
                plan, outline = search_dry_run(request, own_settings, ranges, place())
            lines = [*(plan.lines() if plan else ()), *outline.notes, "", *outline.lines()]
            emit(outline, *lines, as_json=as_json)
            return
        _search(
            partial(run_sweep, request, own_settings, ranges, fresh=fresh), began, as_json=as_json
        )

    return add_flags(sweep, chosen)


def _with_sweep(settings: type[BaseModel]) -> type[BaseModel]:
    """Return the class of all flags: the settings of a run, and those of the search."""
    fields: dict[str, Any] = {
        key: (field.annotation, field) for key, field in SweepConfig.model_fields.items()
    }
    fields["space"] = (_ranges_of(settings), _unset())
    own = create_model("Sweep", __base__=_Flags, **fields)
    first: dict[str, Any] = {"sweep": (own, _unset())}  # in the help
    others = {key: (field.annotation, field) for key, field in settings.model_fields.items()}
    return create_model("Settings", __base__=settings, **{**first, **others})


class _Flags(FrozenModel):
    """Flags of the command line, whose help is that of the fields that they were made of."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _ranges_of(settings: type[BaseModel]) -> type[BaseModel]:
    """Return a class with the same settings, each of which takes a range or values as text."""
    sections: dict[str, Any] = {}
    for name in _SPACE:
        section = settings.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            sections[name] = (_texts_of(section), _unset())
    return create_model("Space", __base__=_Flags, **sections)


def _texts_of(section: type[BaseModel]) -> type[BaseModel]:
    hidden = Parameter(show=False)  # each of them would double the help of a setting
    fields: dict[str, Any] = {}
    for key, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields[key] = (_texts_of(kind), _unset())
        else:
            fields[key] = (Annotated[str | None, hidden], None)
    return create_model(f"{section.__name__}Space", __base__=_Flags, **fields)


def _unset() -> FieldInfo:
    """Return a group of flags of which none is given."""
    return FieldInfo(default=None, validate_default=False)


def _space_of(file: Path | None, flags: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the search space that a file and flags give; empty for the default one."""
    from patchline.plugins.tools.sweep.space import normalize_settings

    of_file = normalize_settings(config_files.read_settings(file)) if file is not None else {}
    return merge_settings(of_file, normalize_settings(flags or {}))


def _check(own: Mapping[str, Any]) -> SweepConfig:
    try:
        return SweepConfig.model_validate(own)
    except ValidationError as error:
        raise config_errors.sentence(error, SweepConfig, "sweep") from error


def _search(search: Callable[[], SweepSummary], began: float, *, as_json: bool) -> None:
    """Search or resume a search, and print its summary."""
    with show_progress():
        summary = search()
    from patchline.pipeline.registry.browsing.run_summary import address_lines
    from patchline.plugins.tools.sweep.search import settings_words

    ended = [each for each in summary.trial_table if each.validation is not None]
    best = sorted(ended, key=lambda each: (each.state != "complete", -(each.validation or 0.0)))
    program, activation = find_program("patchline")
    lines = terminal_lines(
        "searched.txt.j2",
        __package__,
        summary=summary,
        best=best[:_LISTED],
        settings_words=settings_words,
        seconds=time.monotonic() - began,
        program=program,
        activation=activation,
        addresses=address_lines(summary.page, summary.tracking_uri),
    )
    emit(summary, *lines, as_json=as_json)


def run_sweep(
    config: RunConfig, sweep: SweepConfig, space: dict[str, Any], *, fresh: bool = False
) -> SweepSummary:
    """Run the flow of a search, on a temporary Prefect server unless another one is configured.

    Args:
        config: what all trials have in common.
        sweep: length and method of the search.
        space: nested settings with their ranges; empty for the default space.
        fresh: compute every stage instead of reusing results of earlier runs.

    Raises:
        PipelineError: the reason why the search failed.
    """

    def check() -> None:
        from patchline.plugins.tools.sweep.outline import check_settings
        from patchline.plugins.tools.sweep.space import check_given

        check_settings(config)
        check_given(space)

    def search() -> SweepSummary:
        from patchline.plugins.tools.sweep.flow import sweep_flow

        return sweep_flow(config, sweep, space, fresh=fresh)

    return begin(config, search, check)


def resume_sweep(reference: str) -> SweepSummary:
    """Continue a search that failed or was killed, with the settings that it was started with.

    Args:
        reference: the MLflow run's id, the first characters of the id, its name, or `last`.

    Raises:
        ConfigError: if there is no such search, or it cannot be continued.
        PipelineError: the reason why it failed.
    """
    from patchline.pipeline.workspace.run_memory import interrupted_runs
    from patchline.plugins.tools.sweep.config import SWEEP, SweepRequest

    enter_workspace()
    runs = WORKSPACE.resolve() / "runs"
    interrupted = interrupted_runs.find(reference, runs, display().note, SWEEP)
    request = interrupted.request
    if not isinstance(request, SweepRequest):
        raise TypeError(f"{interrupted.folder} holds no request of a search")

    def search() -> SweepSummary:
        from patchline.plugins.tools.sweep.flow import sweep_flow

        return sweep_flow(request.config, request.sweep, request.space, resume=interrupted.run_id)

    return resume(interrupted, search)
