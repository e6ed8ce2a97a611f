"""The command `patchline data diff`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.commands.switches import (
    Columns,
    Json,
    data_config,
    emit,
    given_flags,
    terminal_lines,
)
from patchline.flows.progress.progress_display import display, shown
from patchline.pipeline.config_files import data_settings
from patchline.pipeline.data.config import TaskChoice
from patchline.pipeline.errors import ConfigError, DataError, ModelReferenceError
from patchline.pipeline.plugin_system.plugin_loader import config_class, installed
from patchline.pipeline.workspace.address import is_of_store
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place
from patchline.plugin_api import ReadingRules

if TYPE_CHECKING:
    import pandas as pd


def diff(
    a: str,
    b: str,
    /,
    *,
    as_json: Json = False,
    table: Columns = None,
) -> None:
    """Show which images were added, removed, changed or relabelled from A to B.

    Parameters
    ----------
    a
        A folder, archive, table or SOURCE:NAME; a model version such as flowers@champion or
        flowers/3, or a run, for the data that it was trained with.
    b
        As A.
    table
        Columns of the tables among A and B, where they cannot be guessed.
    """
    from patchline.pipeline.data.manifests.data_diff import compare

    columns = given_flags(table)
    _check_used(columns, a, b)
    with shown():
        result = compare(_manifest(a, columns), _manifest(b, columns))
    content = {"a": a, "b": b, "same": result.same, **result.model_dump(mode="json")}
    lines = terminal_lines("data_diff.txt.j2", __package__, a=a, b=b, result=result)
    emit(content, *lines, as_json=as_json)


def _check_used(columns: Mapping[str, Any], a: str, b: str) -> None:
    """Refuse settings of a table if there is none that takes them."""
    unused = columns.keys() - _own(columns, a).keys() - _own(columns, b).keys()
    if unused:
        flag = min(unused).replace("_", "-")
        raise ConfigError(
            f"--data.{flag} has no effect: neither {a} nor {b} uses it. Leave it out."
        )


def _own(columns: Mapping[str, Any], named: str) -> dict[str, Any]:
    """Return those of the settings that the source of some data takes; a run takes none."""
    if not _is_data(named):
        return {}
    source = data_settings(named, None)["data"]["source"]
    own_keys = {
        *config_class("data_source", source).model_fields,
        *TaskChoice.model_fields,
        *ReadingRules.model_fields,
    }
    return {key: value for key, value in columns.items() if key in own_keys}


def _is_data(named: str) -> bool:
    source = named.partition(":")[0]
    if Path(named).exists() or is_of_store(named):
        return True
    return source in {entry.name for entry in installed("data_source")}


def _manifest(named: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the manifest of data, or of the run that trained a version."""
    from patchline.pipeline.data import ingestion
    from patchline.pipeline.data.manifests.earlier_manifests import manifest_of_run
    from patchline.pipeline.data.manifests.manifest import with_task

    if _is_data(named):
        config = data_config(named, _own(columns, named))
        workspace = place()
        ingestion.check_source(config, workspace, to_train=False)
        display().stage(f"Reading the data ({named})")
        scanned = ingestion.scan(config, workspace, display().advance)
        return with_task(scanned.manifest, scanned.task)
    display().stage(f"Finding the data of {named}")
    run_id = _run_id(named)
    manifest = manifest_of_run(run_id)
    if manifest is None:
        raise DataError(
            f"The run {run_id[:8]} of {named} has no manifest in the tracking store. Name the data "
            "itself, or another run."
        )
    return manifest


def _run_id(named: str) -> str:
    """Return the run that a user names by a model version or as a run."""
    from patchline.pipeline.registry.registered_models import resolve, run_of
    from patchline.pipeline.workspace.run_memory import interrupted_runs

    if "@" in named or "/" in named:
        try:
            return run_of(resolve(named))
        except ModelReferenceError as error:
            raise DataError(
                f"There is no folder or file {named}, and no such model version: {error}"
            ) from error
    return str(interrupted_runs.named(named, WORKSPACE.resolve() / "runs").info.run_id)
