"""The command `patchline run`: parses the arguments and prints the results."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel

from patchline.flows.commands.switches import (
    Json,
    Switch,
    add_flags,
    dump_given_flags,
    emit,
    value_of_switch,
    without_needless_negatives,
)
from patchline.flows.progress.progress_display import display, show_progress
from patchline.flows.training.run_training import resume_training, run_training
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.composed_config import compose_config, value_of_flag
from patchline.pipeline.plugin_system.plugin_loader import plugin_files
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place

if TYPE_CHECKING:
    from patchline.pipeline.registry.browsing.run_summary import RunSummary


_OPENED = 9
"""Images whose sizes are looked at."""
_MEGABYTES = 350
_QUESTION = (
    "{images:,} photographs and no pre-trained weights on this machine: published weights would "
    "help most\n({name}, about {megabytes} MB from {owner}; with `--model.init none`, you are "
    "not asked). Download now? [y/N] "
)


def with_weights(config: RunConfig, ask: Callable[[str], str] | None = None) -> RunConfig:
    """Return the config with the weights to download, if a person wants that.

    Args:
        config: the settings of a new run.
        ask: asks a question and returns the answer; by default on the terminal, if the command has
            no other input or output.
    """
    if ask is None:
        if not all(end.isatty() for end in (sys.stdin, sys.stdout, sys.stderr)):
            return config
        ask = _read_answer
    images = _photographs(config)
    if not images:
        return config
    from patchline.pipeline.planning.planner import may_choose_weights
    from patchline.pipeline.planning.weights_choice import weights_to_fetch
    from patchline.pipeline.registry import registered_models
    from patchline.pipeline.training.initial_weights import local_weights

    there = local_weights.search(config.name or "") if may_choose_weights(config) else None
    if there is None or there.weights:
        return config
    if there.registered and any(each.is_encoder for each in registered_models.newest_versions()):
        return config  # the plan may start from it
    name = weights_to_fetch()
    owner = "Hugging Face" if name.startswith("timm") else "PyTorch"
    question = _QUESTION.format(images=images, name=name, megabytes=_MEGABYTES, owner=owner)
    if ask(question).strip().lower() not in ("y", "yes"):
        return config
    settings = {"model": {"init": name, "download": True}}
    merged = config_files.merge_settings(
        config.model_dump(mode="json", exclude_unset=True), settings
    )
    return config_files.validate_config(merged)


def _photographs(config: RunConfig) -> int:
    """Return how many photographs a folder holds; 0 if they are many, small, or not in a folder."""
    from PIL import Image

    from patchline.pipeline.planning.weights_choice import are_few_photographs
    from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
    from patchline.pipeline.workspace.files.folder_walk import walk_files

    folder = Path(config.data.path or "").expanduser()
    if config.data.path is None or not folder.is_dir():
        return 0
    files: list[str] = []
    for each in walk_files(folder, on_unreadable=lambda _path, _error: None):
        if Path(each.path).suffix.lower() in IMAGE_SUFFIXES:
            files.append(each.path)
        if not are_few_photographs(len(files), math.inf):
            return 0
    sides = []
    for file in files[:: max(1, len(files) // _OPENED)][:_OPENED]:
        try:
            with Image.open(folder / file) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
    few = bool(sides) and are_few_photographs(len(files), statistics.median(sides))
    return len(files) if few else 0


def _read_answer(question: str) -> str:
    """Return the answer of a person, or none."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()


_PROCESSES = "--training.processes"
"""Decides how batches are divided, not what is trained, so a resumed run may have another."""


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = compose_settings(arguments)

    def run(
        data: str | None = None,
        /,
        *,
        config: Path | None = None,
        preset: str | None = None,
        dry_run: Switch = False,
        rehearse: Switch = False,
        schema: Switch = False,
        fresh: Switch = False,
        resume: str | None = None,
        extend: str | None = None,
        as_json: Annotated[Json, Parameter(help="Print one JSON object at the end.")] = False,
        settings: Any = None,
    ) -> None:
        """Train on a folder of images and register the model; without DATA, on built-in digits.

        Parameters
        ----------
        data
            Folder of class folders, archive (zip, tar), table (CSV, Parquet, …), or SOURCE:NAME.
        config
            YAML file with settings; flags override it. Every run writes such a file.
        preset
            Plan the settings not given, for the data and this machine: quick, balanced (unless the
            file names another one), best, or none for the defaults.
        dry_run
            Print the plan and the settings; the data is read, and nothing is trained.
        rehearse
            Try every stage with two batches, register nothing, and estimate the run's duration.
        schema
            Print the settings' JSON schema and exit.
        fresh
            Reuse no results of earlier runs; compute every stage again.
        resume
            Resume an interrupted run: its MLflow id, its name, or `last`. It keeps its settings;
            only --training.processes may change.
        extend
            Train a finished run for longer (--training.epochs), as a new run: its id or `last`.
        settings
            Settings of the run.
        """
        began = time.monotonic()
        if schema:
            emit(chosen.model_json_schema(), as_json=True)
            return
        if resume is not None:
            check_alone(arguments, "run", but=_PROCESSES)
            processes = dump_given_flags(settings).get("training", {}).get("processes")
            _train(partial(resume_training, resume, processes), began, as_json=as_json)
            return
        given = {"DATA": data, "--config": config, "--preset": preset, "--rehearse": rehearse}
        request = _build_config(arguments, extend, settings, given)
        tried = dry_run or rehearse
        start = partial(_try, dry_run=dry_run) if tried else partial(_start, began, fresh=fresh)
        start(request, as_json=as_json)

    return add_flags(run, chosen)


def compose_settings(
    arguments: list[str], sections: Collection[str] = RunConfig.model_fields
) -> type[BaseModel]:
    """Return the class of the settings that can be set for these arguments, preset and file.

    Args:
        arguments: the command's arguments.
        sections: the sections of a run's settings that the command has; by default all.
    """
    named_file = value_of_flag(arguments, "--config")
    named_preset = value_of_flag(arguments, "--preset")
    weaker = config_files.assemble(
        preset_name=named_preset, file=Path(named_file) if named_file else None, flags={}
    )
    return without_needless_negatives(compose_config(arguments, weaker, sections))


def _check_no_switch_value(data: str | None, arguments: list[str]) -> None:
    """Refuse DATA that is meant as the value of the switch before it.

    Raises:
        ConfigError: with the way to write it.
    """
    if data is not None and not Path(data).exists():
        remedy = value_of_switch([data], arguments)
        if remedy:
            raise ConfigError(remedy)


def check_alone(arguments: list[str], what: str, but: str = "") -> None:
    """Refuse arguments that have no meaning beside `--resume`.

    Args:
        arguments: the command's arguments.
        what: the kind of work that is resumed, such as `run`.
        but: the flag of a setting that may change; empty for none.

    Raises:
        ConfigError: for the first one.
    """
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name == "--resume" or (but and name == but):
            if not equals:
                next(rest, None)
        elif argument != "--json":
            except_for = f", except for {but}" if but else ""
            raise ConfigError(
                f"'{argument}' cannot be combined with --resume: a resumed {what} keeps the "
                f"settings it was started with{except_for}. Leave it out, or start a new {what}."
            )


def _build_config(
    arguments: list[str], extend: str | None, settings: BaseModel | None, given: dict[str, Any]
) -> RunConfig:
    """Return the config of a new run, which may extend another one."""
    _check_no_switch_value(given["DATA"], arguments)
    flags = dump_given_flags(settings)
    if extend is not None:
        return _build_extended_config(extend, flags, given)
    data, file, preset = given["DATA"], given["--config"], given["--preset"]
    return config_files.build_config(data, preset_name=preset, file=file, flags=flags)


def _build_extended_config(
    reference: str, flags: dict[str, Any], given: dict[str, Any]
) -> RunConfig:
    """Return the config of a run that extends another one."""
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} cannot be combined with --extend: the run keeps the settings of the one "
                "that it extends. Leave it out, or start a new run."
            )
    from patchline.pipeline.training import extended_run

    return extended_run.build_extended_config(reference, flags, WORKSPACE.resolve() / "runs")


def _try(config: RunConfig, *, dry_run: bool, as_json: bool) -> None:
    """Show what a run would do: its settings, or a rehearsal."""
    if dry_run:
        _print_plan(config)
    else:
        _rehearse(config, as_json=as_json)


def _start(began: float, config: RunConfig, *, fresh: bool, as_json: bool) -> None:
    config = config if as_json else with_weights(config)
    _train(partial(run_training, config, fresh=fresh), began, as_json=as_json)


def _train(training: Callable[[], RunSummary], began: float, *, as_json: bool) -> None:
    """Train or resume a run, and print its summary."""
    with show_progress():
        summary = training()
    from patchline.pipeline.registry.browsing.run_summary import next_steps

    said = next_steps(summary, time.monotonic() - began, plugin_files())
    emit(summary, *said.split("\n"), as_json=as_json)


def _print_plan(config: RunConfig) -> None:
    import yaml

    from patchline.flows.training.dry_run import dry_run

    with show_progress(), worker_start.allow_prepared_workers():
        if config.preset:
            worker_start.LocalLauncher().prepare(MODULE)
        result = dry_run(config, place())
    for line in result.plan.lines() if result.plan else ():
        print(f"# {visible(line)}")
    print(yaml.safe_dump(result.config.model_dump(mode="json"), sort_keys=False), end="")


def _rehearse(config: RunConfig, *, as_json: bool) -> None:
    with show_progress():
        display().stage(f"Listing the images ({config.data.path or config.data.source})")
        from patchline.flows.training.dry_run import rehearse

        result = rehearse(config)
    emit(result, *result.verdict().split("\n"), as_json=as_json)
