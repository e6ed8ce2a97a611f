"""The MLflow model of a package.

`standalone_file.py` writes this module into every package as `model_server.py`: the modules that it
imports from Patchline are inlined, and a last line registers the model with MLflow. So a package
needs only numpy, onnxruntime, OpenCV, Pillow and MLflow: no torch, no Patchline, no plugin, no
pickle.
"""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd

from patchline.pipeline.packaging.packaged_model import PackagedModel, images_of

_SERVING = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
"""Set to `true` in MLflow's scoring server, where a client must not read the server's files; and in
`mlflow models predict`, whose table is the user's own."""
_COMMAND = ("mlflow.pyfunc.scoring_server", "_predict")
"""Module and function that `mlflow models predict` runs in, and the server never does."""


class ImageClassifier(mlflow.pyfunc.PythonModel):  # type: ignore[name-defined,misc]  # MLflow is loosely typed
    """The model that `mlflow.pyfunc.load_model` returns: one answer per row of a column `image`."""

    def load_context(self, context: Any) -> None:
        """Open the ONNX file of the package."""
        self.model = PackagedModel(
            Path(context.artifacts["model.onnx"]), Path(context.artifacts["model.json"])
        )

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Predict a table with a column `image`, or a list of images.

        Parameters: `top_k`, the number of classes; `coverage` of the prediction sets, 0 for the
        package's own; `map`, whether to say where the model looked.
        """
        del context  # used by `load_context`
        given = params or {}
        answers = self.model.answers(
            _images(model_input["image"] if hasattr(model_input, "columns") else model_input),
            int(given.get("top_k", 5)),
            paths=_may_read_files(),
            coverage=float(given.get("coverage") or 0) or None,
            with_map=bool(given.get("map", False)),
        )
        outside = self.model.fits.words()
        if outside:
            warnings.warn(outside, stacklevel=2)
        return answers


def _images(given: Any) -> list[Any]:
    """Return the images in a column, a list, or a tensor."""
    if isinstance(given, np.ndarray) and given.dtype == np.uint8:
        return list(images_of(given))
    images = list(given)
    if len(images) == 1 and isinstance(images[0], list) and _is_texts(images[0]):
        return images[0]  # MLflow puts a list of `inputs` into one row
    return images


def _is_texts(row: list[Any]) -> bool:
    return all(isinstance(each, str | dict) for each in row)


def _may_read_files() -> bool:
    """Return whether text may be the path of an image; what is not known to be safe is not."""
    if os.environ.get(_SERVING) != "true":
        return True
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _COMMAND:
            return True
        frame = frame.f_back
    return False
