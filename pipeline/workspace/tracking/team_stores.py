"""The stores of a team: a PostgreSQL database for MLflow and Prefect, and a place for artifacts.

`patchline up` is given them once and remembers them for the folder, without any credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from patchline.pipeline.errors import ConfigError, ServerAwayError
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.local_services import Services, logs_folder, services_folder

_FILE = "stores.json"


class TeamStores(DocumentedModel):
    """Where the servers of a folder store runs, models, schedules and artifacts."""

    database: str | None = None
    """PostgreSQL database for MLflow and Prefect, as postgresql://USER@HOST:PORT/NAME. `local`
    returns to SQLite files in this folder. Later calls use it again."""
    artifacts: str | None = None
    """Where MLflow stores artifacts: s3://BUCKET/PREFIX or a folder; `local` returns to
    `mlruns`."""
    artifact_access: Literal["proxied", "direct"] = "proxied"
    """Transfer artifacts on S3 through the MLflow server (proxied), or let every run
    and command use S3 with keys of its own (direct)."""
    password_file: Path | None = None
    """File whose first line is the password of the database, instead of PGPASSWORD."""

    def are_local(self) -> bool:
        """Return whether everything is stored in the folder."""
        return self.database is None and self.artifacts is None


def remember(folder: Path, stores: TeamStores) -> None:
    """Write which stores the servers of a folder use.

    Raises:
        StorageError: if the folder may not be written.
    """
    file = services_folder(folder) / _FILE
    if stores.are_local():
        file.unlink(missing_ok=True)
    else:
        stores.to_file(file, is_private=True)


def recall(folder: Path | None = None) -> TeamStores:
    """Return the stores that the servers of a folder (the working directory) use.

    Raises:
        ConfigError: if the file that remembers them is damaged.
    """
    file = services_folder(folder) / _FILE
    try:
        return TeamStores.from_file(file)
    except FileNotFoundError:
        return TeamStores()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file}, which remembers the stores of this folder's servers, is damaged. Give "
            "`patchline up` --database and --artifacts again."
        ) from error


def check_local(silent: Services | None = None) -> None:
    """Check that commands may use the files of the working directory instead of its servers.

    Args:
        silent: the servers, if they run and do not answer.

    Raises:
        ServerAwayError: if they store their runs elsewhere.
    """
    stores = recall()
    if stores.are_local():
        return
    place = stores.database or stores.artifacts
    if silent is None:
        raise ServerAwayError(
            f"The runs of this folder are stored in {place}, which only the servers of the folder "
            "use. Start them with `patchline up`."
        )
    raise ServerAwayError(
        f"The MLflow server of `patchline up` at {silent.mlflow_url} does not answer (see "
        f"{logs_folder(silent.folder) / 'mlflow.log'}). Try again in a minute."
    )
