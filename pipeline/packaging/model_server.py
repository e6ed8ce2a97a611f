"""What MLflow loads from a package.

In a package this module stands alone: the texts of the modules that it imports from Patchline stand
in their place, and a last line hands the model to MLflow. So a package needs numpy, onnxruntime,
OpenCV, Pillow and MLflow only: no torch, no Patchline, no plugin, no pickle.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd

from pipeline.packaging.packaged_model import PackagedModel

_SERVING = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
"""Set to `true` by MLflow's server, which must not read its own files for whoever asks."""


class ImageClassifier(mlflow.pyfunc.PythonModel):  # type: ignore[name-defined,misc]  # MLflow is loosely typed
    """What `mlflow.pyfunc.load_model` returns: a column `image` in, one answer a row out."""

    def load_context(self, context: Any) -> None:
        """Open the ONNX file of the package."""
        self.model = PackagedModel(
            Path(context.artifacts["model.onnx"]), Path(context.artifacts["model.json"])
        )

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Answer for a table with a column `image`, or for a list of images."""
        del context  # `load_context` has used it
        has_column = hasattr(model_input, "columns")
        images = list(model_input["image"]) if has_column else list(model_input)
        top_k = int((params or {}).get("top_k", 5))
        return self.model.answers(images, top_k, paths=os.environ.get(_SERVING) != "true")
