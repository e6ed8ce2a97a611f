"""Whether the runs of a folder are tracked in a store that its archive does not hold."""

from __future__ import annotations

import os
from pathlib import Path

from patchline.pipeline import local_services
from patchline.pipeline.redaction import redacted
from patchline.pipeline.workspace.files.path_uris import sqlite_path
from patchline.pipeline.workspace.tracking import team_stores
from patchline.pipeline.workspace.tracking.tracking_store import DATABASE


def store_elsewhere(folder: Path) -> str | None:
    """Return the address of the store of a folder's runs, without credentials.

    Args:
        folder: holds `.patchline` and maybe `mlflow.db`.

    Returns:
        None if the store is the folder's own `mlflow.db`.

    Raises:
        ConfigError: if the file that remembers a team's stores is damaged.
    """
    services = local_services.running(folder)
    given = os.environ.get("MLFLOW_TRACKING_URI") or (services.mlflow_url if services else "")
    own = services is not None and "mlflow" in services.own and given == services.mlflow_url
    if own or not given:  # the servers of this folder, whether they run or not
        return team_stores.recall(folder).database
    database = sqlite_path(given)
    if database is not None:
        is_here = database.resolve() == (folder / DATABASE).resolve()
        return None if is_here else redacted(given)
    return redacted(given)
