"""The format of a package: what a registered version holds.

| file | content | written by |
| --- | --- | --- |
| `model.onnx` | uint8 images in; calibrated probabilities, or an encoder's features, out | `calibrated_onnx`, `models.onnx_export` |
| `model.json` | classes, image format, temperature, rules for sets and warnings, plugins with their settings | `models.model_files` |
| `model.safetensors` | the weights, to continue training and to explain | `models.model_files` |
| `reference_features.npz` | features of seen images, for the warning `far`; not in every package | `AnswerRules` |
| `reference_images.npz` | probabilities and features of validation and test images, for `patchline monitor` | `models.reference_images` |
| `model_server.py` | the MLflow model from code, which needs only numpy, onnxruntime and OpenCV | `standalone_file` |
| `digests.json` | the SHA-256 of the files above and below, which are compared with it when the package is opened | `package_digests` |
| `model_card.md` | what the model is, from which data, and how good | `model_card` |

`registry.registration` stores them as an MLflow model; `packaged_model` reads them without torch.
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

from patchline.pipeline.models.model_description import DESCRIPTION_FILE, WEIGHTS_FILE
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.packaging.package_digests import DIGESTS_FILE
from patchline.pipeline.packaging.packaged_model import REFERENCE_FILE

__all__ = [
    "ARTIFACTS",
    "CARD_FILE",
    "DESCRIPTION_FILE",
    "DIGESTED",
    "DIGESTS_FILE",
    "ONNX_FILE",
    "OPTIONAL",
    "REFERENCE_FILE",
    "REFERENCE_IMAGES_FILE",
    "SERVER_FILE",
    "WEIGHTS_FILE",
]

ONNX_FILE, SERVER_FILE, CARD_FILE = "model.onnx", "model_server.py", "model_card.md"
DIGESTED = (
    ONNX_FILE,
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    CARD_FILE,
    REFERENCE_FILE,
    REFERENCE_IMAGES_FILE,
)
"""Files whose digests a package holds. Its code is not among them: MLflow has run it before
anything can be compared."""
ARTIFACTS = (*DIGESTED, DIGESTS_FILE)
"""What MLflow stores as files; the server is the model's code."""
OPTIONAL = (REFERENCE_FILE, REFERENCE_IMAGES_FILE, DIGESTS_FILE)
"""Those of them that a package may lack."""
