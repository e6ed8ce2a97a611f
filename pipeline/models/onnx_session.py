"""Open an ONNX file with onnxruntime, whose telemetry is off unless the user turned it on.

onnxruntime decides when it is imported whether it keeps a state file in the user's cache and looks
up a host of its maker, so nothing else in Patchline imports it. A package holds this module, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

from patchline.pipeline.workers.host.processors import default_threads


def open_session(file: Path, threads: int = 0) -> Any:
    """Return an inference session on the CPU.

    Args:
        file: the ONNX file.
        threads: how many threads compute one batch; 0 for `OMP_NUM_THREADS`, or one for each
            processor that this process may use.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or default_threads()
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
