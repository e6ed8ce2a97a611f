"""Virtual environments for tests that install something."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

_PROGRAM = """\
#!{python}
import sys
from {module} import main
sys.exit(main())
"""
_OF_OTHER_TESTS = ("MLFLOW_TRACKING_URI", "PATCHLINE_PLUGIN_FILES")
_PROGRAMS = {
    "patchline": "patchline.flows.command_line",
    "mlflow": "mlflow.cli",
    "pip": "pip._internal.cli.main",
}


def environment_beside(folder: Path) -> dict[str, str]:
    """Make a virtual environment that sees this one's packages; return variables that enter it.

    What is installed there is seen there alone. Nothing is fetched: pip builds with the setuptools
    that is installed, and asks no registry.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    outer = sysconfig.get_path("purelib")
    packages = folder / "lib" / version / "site-packages"
    # As a site folder, not a mere path, so that editable installations are seen as well.
    (packages / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n", "utf-8")
    for name, module in _PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(_PROGRAM.format(python=folder / "bin/python", module=module), "utf-8")
        program.chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if k not in _OF_OTHER_TESTS}
    return {
        **inherited,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
