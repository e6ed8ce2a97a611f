"""Write `model_server.py` for a package: one file that stands alone."""

from __future__ import annotations

import inspect
from importlib import metadata
from pathlib import Path

from pipeline.atomic_files import write_text
from pipeline.data import decoding
from pipeline.errors import PackagingError

_IMPORT = (
    "from pipeline.data.decoding import UndecodableImageError, decode_image, resize_image\n"
)
_FUTURE = "from __future__ import annotations\n"
_LAST_LINES = """

# Hand the model to MLflow, which loads models from code: nothing is unpickled.
mlflow.models.set_model(ImageClassifier())
"""
_DISTRIBUTIONS = ("mlflow", "numpy", "onnxruntime", "opencv-python-headless", "pillow")


def write_server(file: Path) -> None:
    """Write the server with the decoder's text in place of its import."""
    source = (Path(__file__).parent / "model_server.py").read_text(encoding="utf-8")
    if _IMPORT not in source:
        raise PackagingError("model_server.py does not import the decoder as expected. Reinstall.")
    decoder = inspect.getsource(decoding).replace(_FUTURE, "")
    text = source.replace(_IMPORT, f"# -- the decoder ----\n{decoder}\n# -- the model ----\n")
    text = text.replace("import mlflow.pyfunc\n", "import mlflow.models\nimport mlflow.pyfunc\n", 1)
    write_text(file, text + _LAST_LINES)


def requirements() -> list[str]:
    """Return what the server needs, in the versions that it was checked with."""
    return [f"{name}=={metadata.version(name)}" for name in _DISTRIBUTIONS]
