"""The empty database of the installed Prefect, as SQL, kept as in `kept_schema`.

`python -m patchline.flows.prefect_api.prefect_schema` keeps it before the first command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from patchline.pipeline.workspace.files.kept_schema import KeptSchema

KEPT_SCHEMA = KeptSchema("prefect")


def create_migrated_database(folder: Path) -> Path:
    """Create an empty database in a folder by Prefect's own migrations, and return its file."""
    file = folder / "migrated.db"
    program = (
        "import asyncio; from prefect.server.database import provide_database_interface as p; "
        "asyncio.run(p().create_db())"
    )
    variables = {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}",
    }
    command = [sys.executable, "-P", "-c", program]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    return file


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        KEPT_SCHEMA.keep(create_migrated_database(Path(place)))
