"""The command `patchline run`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel

from flows.commands.config_flags import composed_config, value_of_flag
from flows.commands.data_argument import data_settings
from flows.commands.switches import Json, Switch
from flows.progress import display, shown
from flows.training import ahead
from pipeline import config_files, local_services
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plugin_system.plugin_loader import plugin_files
from pipeline.run_memory import live_runs
from pipeline.terminal_words import visible
from pipeline.workers import worker_start
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from flows.training.run_summary import RunSummary


Settings = dict[str, Any]


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = composed(arguments)

    def run(
        data: str | None = None,
        /,
        *,
        config: Path | None = None,
        preset: str | None = None,
        dry_run: Switch = False,
        schema: Switch = False,
        fresh: Switch = False,
        resume: str | None = None,
        as_json: Annotated[Json, Parameter(help="Print one JSON object at the end.")] = False,
        settings: Annotated[chosen | None, Parameter(name="*")] = None,
    ) -> None:
        """Train on a folder of images and register the model; without DATA, on built-in digits.

        Parameters
        ----------
        data
            A folder with one subfolder of images for each class, or SOURCE:NAME.
        config
            YAML file with settings; flags beat it. A run writes such a file.
        preset
            Starting point that file and flags beat: quick, balanced or best.
        dry_run
            Read the data and print the resolved settings, without training.
        schema
            Print the JSON schema of the settings and stop.
        fresh
            Compute every stage, also those that an earlier run has done unchanged.
        resume
            Continue a run that failed or was killed: its MLflow id, the beginning of it, its name,
            or `last`. Its settings are those that it was started with.
        settings
            Settings of the run.
        """
        began = time.monotonic()
        if schema:
            print(json.dumps(chosen.model_json_schema(), indent=2))
            return
        if resume is not None:
            _check_alone(arguments)
            _print_summary(resume_run(resume), began, as_json=as_json)
            return
        asked = _checked(settings, data, preset, config)
        if dry_run:
            _print_plan(asked)
            return
        _print_summary(run_flow(asked, fresh=fresh), began, as_json=as_json)

    # The composed class exists only here, so the annotation is not a name that could be looked up.
    run.__annotations__["settings"] = Annotated[chosen | None, Parameter(name="*")]
    return run


def composed(arguments: list[str]) -> type[BaseModel]:
    """Return the class of the settings that arguments, preset and file leave to be set."""
    named_file = value_of_flag(arguments, "--config")
    named_preset = value_of_flag(arguments, "--preset")
    weaker = config_files.assemble(
        preset_name=named_preset, file=Path(named_file) if named_file else None, flags={}
    )
    return composed_config(arguments, weaker)


def run_flow(config: RunConfig, *, fresh: bool = False) -> RunSummary:
    """Run the training flow, on a temporary Prefect server unless another is there.

    Args:
        config: what to compute.
        fresh: whether results of earlier runs are not to be used.

    Raises:
        PipelineError: whatever the flow could not do.
    """
    with shown(), worker_start.prepared_workers():
        ahead.training()  # its imports and those of this process take as long, side by side
        from pipeline.data import ingestion

        ingestion.check_source(config, WORKSPACE.resolve())
        return _in_prefect(config, fresh=fresh)


def resume_run(words: str) -> RunSummary:
    """Continue the run that the words name.

    Raises:
        ConfigError: if there is no such run, or it cannot be continued.
        PipelineError: whatever the flow could not do.
    """
    from pipeline.plugin_system.plugin_loader import use_plugin_files
    from pipeline.run_memory import interrupted_runs

    found = interrupted_runs.find(words, WORKSPACE.resolve() / "runs")
    files = [*map(Path, found.request.plugin_files), *plugin_files()]
    use_plugin_files(list(dict.fromkeys(files)))
    with shown(), worker_start.prepared_workers():
        ahead.training()
        return _in_prefect(found.request.config, resume=found.run_id, fresh=found.request.fresh)


def _in_prefect(config: RunConfig, *, resume: str | None = None, fresh: bool) -> RunSummary:
    from flows import prefect_session

    up = local_services.running() is not None
    display().stage(f"{'Connecting to' if up else 'Starting'} Prefect and MLflow")
    with prefect_session.server():
        from prefect import tags

        from flows.closing import close_runs
        from flows.training.training_flow import training_flow

        with prefect_session.ready():
            for sentence in close_runs.close_abandoned_runs():
                display().note(sentence)
            with live_runs.owner(WORKSPACE.resolve()) as owner, tags(owner):
                return training_flow(config, resume=resume, fresh=fresh)


def _check_alone(arguments: list[str]) -> None:
    """Refuse what a run that is continued cannot be given any more."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--resume":
            next(rest, None)
        elif argument != "--json" and not argument.startswith("--resume="):
            raise ConfigError(
                f"'{argument}' stands beside --resume, but a run goes on with the settings that it "
                "was started with. Leave it out, or start a new run."
            )


def _print_summary(summary: RunSummary, began: float, *, as_json: bool) -> None:
    if as_json:
        print(summary.model_dump_json(indent=2))
    else:
        print(_closing_words(summary, time.monotonic() - began))


def _checked(
    settings: BaseModel | None, data: str | None, preset: str | None, file: Path | None
) -> RunConfig:
    """Return the config that flags, file and preset ask for."""
    given = _set_values(settings)
    source = given.get("data", {}).get("source")
    flags = config_files.merged(given, data_settings(data, source))
    return config_files.validated(config_files.assemble(preset_name=preset, file=file, flags=flags))


def _set_values(settings: BaseModel | None) -> Settings:
    return settings.model_dump(exclude_unset=True, mode="json") if settings else {}


def _print_plan(config: RunConfig) -> None:
    import yaml

    from pipeline.data import ingestion

    with shown():
        data = ingestion.ingest(config, WORKSPACE.resolve(), display().advance, remember=False)
        for note in data.notes:
            display().note(note)
    resolved = ingestion.resolve(config, data)
    print(yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False), end="")


def _closing_words(summary: RunSummary, total: float) -> str:
    accuracy = summary.metrics["test/accuracy"]
    parts = {**summary.seconds, "the rest": total - sum(summary.seconds.values())}
    stages = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in parts.items())
    program = _shown_program("patchline")
    champion = "champion" in summary.aliases
    model = f"{summary.name}@champion" if champion else f"{summary.name}/{summary.version}"
    promote = [(f"{program} promote {summary.name}", "make it champion, if it is better")]
    if champion:
        promote = []
    elif summary.approval:
        promote = [(f"{program} approve {model}", "make it champion, or `reject` it")]
    plugins = "".join(f" --plugin {_shown_path(str(file))}" for file in plugin_files())
    commands = [
        (f"{program} predict {model} {_shown_path(summary.example_image)}", "label an image"),
        *promote,
        (f"{program} models {summary.name}", "all versions and their figures"),
        _browsing(summary.tracking_uri),
        (f"{program} run --config {_shown_path(summary.config)}{plugins} --fresh",
         "the same weights again"),
    ]  # fmt: skip
    width = max(len(command) for command, _ in commands)
    lines = [
        "",
        (
            f"Test accuracy  {accuracy.value:.1%} of {accuracy.n} images "
            f"(95 % interval {accuracy.low:.1%} to {accuracy.high:.1%})"
        ),
        f"Registered     {summary.name}, version {summary.version} ({', '.join(summary.aliases)})",
        *_promotion_lines(summary, champion=champion),
        f"Report         {_shown_path(summary.report)}",
        f"Seconds        {total:.0f} ({stages})",
        "",
        "What comes next:",
        *(f"  {command:<{width}}  {meaning}" for command, meaning in commands),
    ]
    return "\n".join(lines)


def _browsing(tracking_uri: str) -> tuple[str, str]:
    if tracking_uri.startswith("http"):
        return f"{tracking_uri}/#/experiments?workflowType=machine_learning", "browse the runs"
    return f"{_shown_program('mlflow')} ui", "browse the runs in this folder"


def _promotion_lines(summary: RunSummary, *, champion: bool) -> list[str]:
    decision = summary.promotion
    if champion:
        return []
    if decision is None:
        who = "a person is to decide" if summary.approval else "you decide"
        lines = [f"               the champion stays the version that it was; {who}"]
    else:
        lines = [f"Not promoted   {decision.reason}"]
    return [*lines, f"Approval       {summary.approval}"] if summary.approval else lines


def _shown_program(name: str) -> str:
    """Return how the user can call a program of this environment from here."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found and Path(found).exists() and Path(found).samefile(beside):
        return name
    return _shown_path(str(beside))


def _shown_path(path: str) -> str:
    """Return a path as a shell reads it, in ASCII where a terminal would obey a character."""
    relative = os.path.relpath(path)
    shown = path if relative.startswith("..") else relative
    shown = f"./{shown}" if shown.startswith("-") else shown
    if visible(shown) == shown:
        return shlex.quote(shown)
    return f"$'{''.join(map(_ansi_quoted, shown))}'"


def _ansi_quoted(character: str) -> str:
    r"""Return a character as it is written in Bash's and Zsh's $'...'."""
    if character in "\\'":
        return f"\\{character}"
    if visible(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
