"""Write a package's `model_server.py`: the MLflow classifier as one self-contained file."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.workspace.files.atomic_files import write_text

_OWN_IMPORT = re.compile(
    r"^from patchline\.pipeline\.([a-z_.]+) import (?:[^\n(]*|\([^)]*\))\n", re.MULTILINE
)
_FUTURE = "from __future__ import annotations\n"
_LAST_LINES = """

# Register the model with MLflow, which loads it from code: nothing is unpickled.
mlflow.models.set_model(ImageClassifier())
"""
_DISTRIBUTIONS = ("mlflow", "numpy", "onnxruntime", "opencv-python-headless", "pillow")


def write_model_server(file: Path) -> None:
    """Write `mlflow_classifier.py` with the modules it imports from Patchline inlined."""
    text = _inline_imports("packaging.mlflow_classifier", set())
    text = text.replace("import mlflow.pyfunc\n", "import mlflow.models\nimport mlflow.pyfunc\n", 1)
    write_text(file, f"{_FUTURE}\n{text}{_LAST_LINES}")


def requirements() -> list[str]:
    """Return the requirements of a package, pinned to the versions it was checked with."""
    return [f"{name}=={metadata.version(name)}" for name in _DISTRIBUTIONS]


def _inline_imports(module: str, written: set[str]) -> str:
    """Return a module's source with the modules it imports inlined, each once."""
    if module in written:
        return ""
    written.add(module)
    file = PACKAGE.joinpath("pipeline", *module.split(".")).with_suffix(".py")
    text = file.read_text(encoding="utf-8").replace(_FUTURE, "")
    inlined = _OWN_IMPORT.sub(lambda match: _inline_imports(match[1], written), text)
    return f"# -- patchline.pipeline.{module} --\n{inlined}"
