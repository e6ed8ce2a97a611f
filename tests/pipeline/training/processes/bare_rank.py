"""A rank that `torch.distributed.run` starts for `benchmarks.launchers`: `… -m MODULE FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from patchline.pipeline.training.processes import rank

if __name__ == "__main__":
    rank.main(Path(sys.argv[1]), os.getppid())
