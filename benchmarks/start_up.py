"""How long `patchline --help` and `patchline plugins list` take: median of several runs.

python -m benchmarks.start_up
"""

from __future__ import annotations

import statistics
import subprocess
import time

from benchmarks.measured_runs import PATCHLINE, machine

RUNS = 11


def main() -> None:
    """Print a line a command."""
    print(machine())
    for arguments in (["--help"], ["plugins", "list"]):
        seconds = []
        for _ in range(RUNS):
            began = time.perf_counter()
            subprocess.run([str(PATCHLINE), *arguments], stdout=subprocess.DEVNULL, check=True)
            seconds.append(time.perf_counter() - began)
        print(f"patchline {' '.join(arguments)}: {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
