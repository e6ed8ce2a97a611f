"""Prefect's server: `python -P -m patchline.flows.services.prefect_server FOLDER LIFELINE PORT`."""

from __future__ import annotations

import os

from patchline.flows.prefect_api import temporary_server
from patchline.pipeline.local_services import ensure_secret, services_folder
from patchline.pipeline.workers import supervised_process


def _main() -> None:
    folder, _, [port] = supervised_process.begin()
    os.chdir(services_folder(folder))  # no settings of the user's are there
    temporary_server.serve(int(port), ensure_secret(folder), "warning")


if __name__ == "__main__":
    supervised_process.main(_main)
