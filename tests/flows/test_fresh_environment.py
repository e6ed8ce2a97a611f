"""A plugin in an environment that was made for it, with everything from the package registry."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import PATCHLINE, write_photos

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_new_plugin_works_in_a_fresh_environment(tmp_path: Path) -> None:
    """Installed beside Patchline alone, it keeps the contract, trains, and serves elsewhere.

    The folder is that of a project with a package `flows` of its own, which mypy sees too.
    """
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    write_photos(tmp_path / "photos", images=12)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").write_text("ours = 1\n", encoding="utf-8")
    typed = "import flows\nimport patchline\nfrom patchline.plugin_api import ImageSpec\n\n"
    typed += "reveal_type((flows.ours, patchline.run, ImageSpec.channels))\n"
    (tmp_path / "typed.py").write_text(typed, encoding="utf-8")
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    constraints = ROOT / "constraints.txt"
    run(programs / "python", "-m", "pip", "install", "--quiet", "-c", constraints, ROOT)
    run(programs / "patchline", "plugins", "new", "patch_embedding", "my_stem")
    run(programs / "python", "-m", "pip", "install", "--quiet", tmp_path / "patchline-my-stem")
    assert "0 failed" in run(programs / "patchline", "plugins", "check", "my_stem")
    embedding = ("--model.patch-embedding.name", "my_stem")
    run(
        programs / "patchline",
        "run",
        "photos",
        "--preset",
        "none",
        *embedding,
        "--training.epochs",
        "1",
    )
    assert "my_stem" not in run(PATCHLINE, "plugins", "list")
    photo = tmp_path / "photos" / "across" / "000.png"
    assert "across" in run(PATCHLINE, "predict", "photos@champion", photo)
    program = "import patchline; print(patchline.load('photos').predict('photos')['label'].count())"
    assert run(programs / "python", "-c", program).split() == ["36"]
    run(programs / "python", "-m", "pip", "install", "--quiet", "-c", constraints, "mypy")
    seen = run(programs / "python", "-m", "mypy", "--follow-imports", "silent", "typed.py")
    assert "-> patchline.pipeline.browsing.notebook_results.Run" in seen
    assert seen.count("int") >= 2
    assert Path(sys.prefix) not in programs.parents
