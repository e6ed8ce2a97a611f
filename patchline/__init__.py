"""The Python API of Patchline: train, load, evaluate, explain and promote from a program.

    import patchline

    run = patchline.run("flowers", preset="quick")
    run.metrics["test/accuracy"].value
    model = patchline.load("flowers@champion")
    model.predict(["rose.jpg", "tulip.jpg"])

Each function does what the command of the same name does, in the working directory: the same
stages, tracking, defaults and files. Installed tools may add functions. Errors are exceptions
below `PipelineError`, with the sentence that the command prints. Importing this package imports
nothing: names come when they are used.

The folders `pipeline`, `flows` and `plugins` of the checkout are `patchline.pipeline`,
`patchline.flows` and `patchline.plugins`, so that they collide with nobody's packages.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

# See `patchline.pipeline.workers.worker_start`.
if "patchline-worker" in sys._xoptions:  # noqa: SLF001 - documented, for options of programs
    gc.disable()

if TYPE_CHECKING:
    from patchline.flows.training.dry_run import Rehearsal
    from patchline.pipeline.errors import (
        ConfigError,
        DataError,
        ModelReferenceError,
        PipelineError,
        PluginError,
        RunError,
        UserError,
    )
    from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
    from patchline.pipeline.packaging.prediction.loaded_model import Model
    from patchline.pipeline.registry.browsing.notebook import (
        DataReport,
        Decision,
        Evaluation,
        Explanation,
        Report,
        Run,
    )
    from patchline.python_api import (
        Settings,
        evaluate,
        explain,
        inspect_data,
        load,
        models,
        promote,
        rehearse,
        run,
    )

__all__ = [
    "ConfigError",
    "DataError",
    "DataReport",
    "Decision",
    "Evaluation",
    "Explanation",
    "MetricEstimate",
    "Model",
    "ModelReferenceError",
    "PipelineError",
    "PluginError",
    "Rehearsal",
    "Report",
    "Run",
    "RunError",
    "Settings",
    "UserError",
    "evaluate",
    "explain",
    "inspect_data",
    "load",
    "models",
    "promote",
    "rehearse",
    "run",
]

_MODULES = {
    "Rehearsal": "patchline.flows.training.dry_run",
    "DataReport": "patchline.pipeline.registry.browsing.notebook",
    "Decision": "patchline.pipeline.registry.browsing.notebook",
    "Evaluation": "patchline.pipeline.registry.browsing.notebook",
    "Explanation": "patchline.pipeline.registry.browsing.notebook",
    "Report": "patchline.pipeline.registry.browsing.notebook",
    "Run": "patchline.pipeline.registry.browsing.notebook",
    "ConfigError": "patchline.pipeline.errors",
    "DataError": "patchline.pipeline.errors",
    "ModelReferenceError": "patchline.pipeline.errors",
    "PipelineError": "patchline.pipeline.errors",
    "PluginError": "patchline.pipeline.errors",
    "RunError": "patchline.pipeline.errors",
    "UserError": "patchline.pipeline.errors",
    "MetricEstimate": "patchline.pipeline.evaluation.metrics.intervals",
    "Model": "patchline.pipeline.packaging.prediction.loaded_model",
    "Settings": "patchline.python_api",
    "evaluate": "patchline.python_api",
    "explain": "patchline.python_api",
    "inspect_data": "patchline.python_api",
    "load": "patchline.python_api",
    "models": "patchline.python_api",
    "promote": "patchline.python_api",
    "rehearse": "patchline.python_api",
    "run": "patchline.python_api",
}
"""Where each name comes from."""


def __getattr__(name: str) -> object:
    """Import a name when somebody uses it: one of those above, or a function of a tool."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        function = import_module("patchline.python_api").find_tool_function(name)
        if function is not None:
            return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names, so that an editor and a notebook complete them before they are used."""
    return sorted({*globals(), *__all__})
