"""The command `patchline data inspect`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.run import composed
from flows.commands.switches import Json
from flows.progress import display, shown
from pipeline import config_files
from pipeline.browsing.notebook_results import PAGE, TABLE
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.terminal_words import pasted_path, visible
from pipeline.workspace import WORKSPACE, make_folder

if TYPE_CHECKING:
    from pipeline.inspection.inspecting import Inspected


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = composed(arguments)

    def inspect(
        data: str | None = None,
        /,
        *,
        out: Path | None = None,
        config: Path | None = None,
        as_json: Json = False,
        settings: Annotated[chosen | None, Parameter(name="*")] = None,
    ) -> None:
        """Report on the data alone: counts, damage, duplicates, leakage, imbalance.

        Parameters
        ----------
        data
            As for `run`: a folder, archive, table, or SOURCE:NAME; without it, the built-in digits.
        out
            Folder for the page and the table of findings, by default below .patchline/inspections.
        config
            YAML file with settings; flags override it.
        settings
            Settings of a run: --data.exclude findings.csv, --data.label-column species.
        """
        flags = settings.model_dump(exclude_unset=True, mode="json") if settings else {}
        asked = config_files.requested(data, file=config, flags=flags)
        found, folder = inspected(asked, out)
        if as_json:
            files = {"page": str(folder / PAGE), "table": str(folder / TABLE)}
            print(json.dumps({**found.result.model_dump(mode="json"), **files}, indent=2))
        else:
            _print(found, folder)

    # The composed class exists only here, so the annotation is not a name that could be looked up.
    inspect.__annotations__["settings"] = Annotated[chosen | None, Parameter(name="*")]
    return inspect


def inspected(asked: RunConfig, out: Path | None) -> tuple[Inspected, Path]:
    """Inspect the data; write the page and the table into a folder, and return it."""
    from pipeline.data import ingestion
    from pipeline.files.atomic_files import storage_errors
    from pipeline.inspection.findings_table import write_table
    from pipeline.inspection.inspecting import inspect_data
    from pipeline.inspection.page import write_page

    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file. Set it to a folder for the page.")
    workspace = WORKSPACE.resolve()
    ingestion.check_source(asked, workspace, to_train=False)
    with shown():
        display().stage(f"Inspecting the data ({asked.data.path or asked.data.source})")
        found = inspect_data(asked, workspace, display().advance)
        result = found.result
        below = workspace / "inspections" / f"{result.name}-{result.fingerprint[:8]}"
        folder = below if out is None else out.resolve()
        with storage_errors(folder):
            make_folder(folder)
        write_page(found, folder / PAGE)
        write_table(result, found.manifest, folder / TABLE)
    return found, folder


def _print(found: Inspected, folder: Path) -> None:
    from rich.console import Console

    from pipeline.inspection.terminal_report import terminal_report

    console = Console(highlight=False, markup=False, emoji=False)
    for part in terminal_report(found.result):
        console.print(part)
    table = pasted_path(str(folder / TABLE))
    lines = [
        f"\nPage with the images: {visible(pasted_path(str(folder / PAGE)))}",
        f"Table of findings:    {visible(table)}",
    ]
    if found.result.findings:
        lines.append(f"Leave out what it marks `yes` under `exclude`: --data.exclude {table}")
    console.print("\n".join(lines), soft_wrap=True)
