"""The model server: `python -P -m patchline.flows.services.model_server FOLDER LIFELINE MODEL …`.

It serves a registered model on loopback, as `patchline serve` does, once the MLflow server answers.
"""

from __future__ import annotations

import os
import time

from patchline.flows.commands.serve import serve_model
from patchline.pipeline.local_services import answers
from patchline.pipeline.serving.access_token import given_token
from patchline.pipeline.serving.config import ServingConfig
from patchline.pipeline.supervision import supervised_main

_POLL_SECONDS = 0.2


def _main() -> None:
    _, _, [model, port] = supervised_main.begin()
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    while store.startswith("http") and not answers(f"{store.rstrip('/')}/health"):
        time.sleep(_POLL_SECONDS)
    serve_model(model, ServingConfig(port=int(port), token=given_token(None)), as_json=False)


if __name__ == "__main__":
    supervised_main.main(_main)
