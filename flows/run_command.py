"""The command `patchline run`."""

from __future__ import annotations

import json as json_format
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel

from flows.config_flags import composed_config, value_of_flag
from flows.data_argument import data_settings
from flows.progress import display, shown
from pipeline import config_files
from pipeline.config import RunConfig
from pipeline.plugin_loader import plugin_files

if TYPE_CHECKING:
    from flows.training_flow import RunSummary


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
        dry_run: Annotated[bool, Parameter(negative="")] = False,
        schema: Annotated[bool, Parameter(negative="")] = False,
        json: Annotated[bool, Parameter(negative="")] = False,
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
        json
            Print one JSON object at the end.
        settings
            Settings of the run.
        """
        if schema:
            print(json_format.dumps(chosen.model_json_schema(), indent=2))
            return
        given = _set_values(settings)
        source = given.get("data", {}).get("source")
        flags = config_files.merged(given, data_settings(data, source))
        merged = config_files.assemble(preset_name=preset, file=config, flags=flags)
        checked = config_files.validated(merged)
        with shown():
            if dry_run:
                _print_plan(checked)
                return
            summary = run_flow(checked)
        if json:
            print(summary.model_dump_json(indent=2))
        else:
            print(_closing_words(summary))

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


def run_flow(config: RunConfig) -> RunSummary:
    """Run the training flow, on a temporary Prefect server unless another is configured.

    Raises:
        PipelineError: whatever the flow could not do.
    """
    from flows import prefect_session
    from pipeline.data import ingestion

    ingestion.check_source(config, Path(".patchline").resolve())
    display().stage("Starting Prefect and MLflow")
    with prefect_session.server():
        from flows.training_flow import training_flow
        from pipeline import tracking

        for run_id in tracking.close_abandoned():
            display().note(f"run {run_id} was left open by a killed process and is closed now")
        with prefect_session.ready():
            return training_flow(config)


def _set_values(settings: BaseModel | None) -> Settings:
    return settings.model_dump(exclude_unset=True, mode="json") if settings else {}


def _print_plan(config: RunConfig) -> None:
    import yaml

    from pipeline.data import ingestion

    data = ingestion.ingest(config, Path(".patchline").resolve(), display().advance)
    for note in data.notes:
        display().note(note)
    resolved = ingestion.resolve(config, data)
    print(yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False), end="")


def _closing_words(summary: RunSummary) -> str:
    accuracy = summary.metrics["test/accuracy"]
    total = sum(summary.seconds.values())
    stages = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in summary.seconds.items())
    program = _shown_program("patchline")
    champion = "champion" in summary.aliases
    model = f"{summary.name}@champion" if champion else f"{summary.name}/{summary.version}"
    promote = (
        []
        if champion
        else [(f"{program} promote {summary.name}", "make it champion, if it is better")]
    )
    plugins = "".join(f" --plugin {_shown_path(str(file))}" for file in plugin_files())
    commands = [
        (f"{program} predict {model} {_shown_path(summary.example_image)}", "label an image"),
        *promote,
        (f"{program} models {summary.name}", "all versions and their figures"),
        (f"{_shown_program('mlflow')} ui", "browse the runs in this folder"),
        (f"{program} run --config {_shown_path(summary.config)}{plugins}",
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


def _promotion_lines(summary: RunSummary, *, champion: bool) -> list[str]:
    decision = summary.promotion
    if champion:
        return []
    if decision is None:
        return ["               the champion stays the version that it was; you decide"]
    return [f"Not promoted   {decision.reason}"]


def _shown_program(name: str) -> str:
    """Return how the user can call a program of this environment from here."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found and Path(found).exists() and Path(found).samefile(beside):
        return name
    return _shown_path(str(beside))


def _shown_path(path: str) -> str:
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)
