"""Virtual environments for tests that install something, and the wheel of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("flows", "pipeline", "plugins")

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


def install_wheel(into: Path, scratch: Path) -> None:
    """Build the wheel of the checkout, and unpack it into a folder."""
    for name in (*FOLDERS, "patchline"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, scratch / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, scratch)
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    command = (sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "dist", ".")
    subprocess.run(command, cwd=scratch, check=True, capture_output=True)
    [file] = (scratch / "dist").glob("*.whl")
    zipfile.ZipFile(file).extractall(into)


def environment_of_wheel(folder: Path, scratch: Path) -> dict[str, str]:
    """Make a virtual environment with Patchline's wheel, where the checkout is not seen.

    It sees the other packages of this environment; return variables that enter it.
    """
    entered = environment_beside(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "outer.pth").unlink()
    places = [p for p in sys.path if Path(p).name == "site-packages" and Path(p).is_dir()]
    (packages / "packages.pth").write_text("\n".join(places) + "\n", encoding="utf-8")
    install_wheel(packages, scratch)
    return {name: value for name, value in entered.items() if name != "PYTHONPATH"}


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
