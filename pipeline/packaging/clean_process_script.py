"""Load a package with MLflow in a clean process and predict a few images.

Run by `clean_process_check.py` as `python -I clean_process_script.py PACKAGE IMAGES ROUNDS`, where
IMAGES is a JSON list of paths. It imports nothing from Patchline, so a package that depends on it
fails here. Prints one JSON object: `answers` (each with the whole `top_k`), `milliseconds` of every
single-image prediction, and `modules`: modules that are loaded although a package must not need
them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

_UNWANTED = ("torch", "patchline")


def main(package: str, images_file: str, rounds: int) -> None:
    """Predict all images in one batch, then time ROUNDS predictions of a single image."""
    import mlflow.pyfunc
    import pandas as pd

    images = json.loads(Path(images_file).read_text(encoding="utf-8"))
    model = mlflow.pyfunc.load_model(package)
    everything = {"top_k": 1_000_000}
    answers = model.predict(pd.DataFrame({"image": images}), params=everything)
    contents = [Path(image).read_bytes() for image in images]
    milliseconds = []
    for number in range(rounds):
        table = pd.DataFrame({"image": [contents[number % len(contents)]]})
        began = time.perf_counter()
        model.predict(table)
        milliseconds.append(1000 * (time.perf_counter() - began))
    modules = [name for name in _UNWANTED if name in sys.modules]
    print(json.dumps({"answers": answers, "milliseconds": milliseconds, "modules": modules}))  # noqa: T201 - the output


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
