"""How long the commands take that only read: median of several runs.

python -m benchmarks.start_up
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measured_runs import PATCHLINE, machine
from patchline.pipeline.plugin_system.plugin_skeleton import write_package

RUNS = 11
PLUGINS = 200


def main() -> None:
    """Print a line a command."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    print(f"patchline --help: {_seconds(['--help']):.3f} s")
    print(f"patchline plugins list: {_seconds(['plugins', 'list']):.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        _install_many(Path(folder))
        environment = {**os.environ, "PYTHONPATH": folder}
        seconds = _seconds(["plugins", "list"], environment)
        print(f"patchline plugins list with {PLUGINS} more plugins: {seconds:.3f} s")


def _seconds(arguments: list[str], environment: dict[str, str] | None = None) -> float:
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(
            [str(PATCHLINE), *arguments], stdout=subprocess.DEVNULL, check=True, env=environment
        )
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _install_many(folder: Path) -> None:
    """Lay out installed packages, each with the plugin that `plugins new` writes."""
    for number in range(PLUGINS):
        name = f"many_{number:03d}"
        package = write_package("patch_embedding", name, folder).folder
        (package / f"patchline_{name}").rename(folder / f"patchline_{name}")
        metadata = folder / f"patchline_{name}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: patchline-{name}\nVersion: 0.1.0\n", encoding="utf-8"
        )
        (metadata / "entry_points.txt").write_text(
            f"[patchline.patch_embeddings]\n{name} = patchline_{name}.plugin:plugin\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
