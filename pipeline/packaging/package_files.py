"""The format of a package: what a registered version holds.

| file | content | written by |
| --- | --- | --- |
| `model.onnx` | uint8 images in; calibrated probabilities, or an encoder's features, out | `calibrated_onnx`, `inner_outputs`, `models.onnx_export` |
| `model.json` | classes, image format, temperature, rules for sets and warnings, plugins with their settings | `models.model_files` |
| `model.safetensors` | the weights, to continue training and to explain | `models.model_files` |
| `reference_features.npz` | features of seen images, for the warning `far`; not in every package | `answer_rules` |
| `model_server.py` | the MLflow model from code, which needs only numpy, onnxruntime and OpenCV | `standalone_file` |
| `model_card.md` | what the model is, from which data, and how good | `model_card` |

`registry.registration` stores them as an MLflow model; `packaged_model` reads them without torch.
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

from patchline.pipeline.models.model_file_names import DESCRIPTION_FILE, WEIGHTS_FILE
from patchline.pipeline.packaging.packaged_model import REFERENCE_FILE

__all__ = [
    "ARTIFACTS",
    "CARD_FILE",
    "DESCRIPTION_FILE",
    "ONNX_FILE",
    "OPTIONAL",
    "REFERENCE_FILE",
    "SERVER_FILE",
    "WEIGHTS_FILE",
]

ONNX_FILE, SERVER_FILE, CARD_FILE = "model.onnx", "model_server.py", "model_card.md"
ARTIFACTS = (ONNX_FILE, DESCRIPTION_FILE, WEIGHTS_FILE, CARD_FILE, REFERENCE_FILE)
"""What MLflow stores as files; the server is the model's code."""
OPTIONAL = (REFERENCE_FILE,)
"""Those of them that a package may lack."""
