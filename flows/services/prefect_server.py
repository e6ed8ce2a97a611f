"""Prefect's server: `python -P -m patchline.flows.services.prefect_server FOLDER LIFELINE PORT`."""

from __future__ import annotations

import os

from patchline.flows.prefect_api import prefect_app
from patchline.pipeline.local_login import ensure_secret
from patchline.pipeline.local_services import services_folder
from patchline.pipeline.workers.supervision import supervised_main


def _main() -> None:
    folder, _, [port] = supervised_main.begin()
    os.chdir(services_folder(folder))  # no settings of the user's are there
    prefect_app.serve(int(port), ensure_secret(folder), "warning")


if __name__ == "__main__":
    supervised_main.main(_main)
