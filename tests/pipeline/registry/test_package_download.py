"""Downloads of packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_downloaded_package_is_gone_when_the_process_has_ended() -> None:
    """A nightly command fills no disk: MLflow itself removes none of its downloads."""
    program = (
        "from patchline.pipeline.registry.package_download import temporary_folder\n"
        "folder = temporary_folder()\n"
        "(folder / 'model.onnx').write_bytes(b'weights')\n"
        "print(folder)"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    folder = Path(ended.stdout.strip())
    assert folder.name.startswith("patchline-package-")
    assert not folder.exists()
