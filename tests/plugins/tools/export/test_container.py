"""The folder of a container image: what is in it, and that its server answers as the package."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import venv
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from patchline.pipeline.data.reading.decoding import MAX_PIXELS
from patchline.pipeline.errors import PackagingError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.serving.__main__ import main
from patchline.pipeline.registry.serving.interfaces.answering import MEMORY_FACTOR
from patchline.pipeline.web.config import ServingConfig
from patchline.plugins.tools.export.comparison import ComparisonImages
from patchline.plugins.tools.export.container_form import (
    ServedVersion,
    check_server,
    run_server,
)
from patchline.plugins.tools.export.exporting import export
from tests.conftest import draw_photo
from tests.environments import environment_of_wheel
from tests.patience import patient
from tests.pipeline.conftest import Exported

SERVED = ServedVersion("Stripes_2.0", "3")
ABSENT = {"torch", "torchvision", "mlflow", "prefect", "pandas", "scipy", "albumentations"}


@pytest.fixture(scope="module")
def folder(
    exported_rgb: Exported, photos: ComparisonImages, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return an exported folder; its server has been started and has answered."""
    out = tmp_path_factory.mktemp("container") / "out"
    record = export(
        ModelReference("Stripes_2.0", "3", "models:/m-1"),
        "container",
        photos,
        out,
        lambda *_: None,
        source=exported_rgb.onnx_file.parent,
    )
    assert record.chosen is not None, record.refusal
    assert [file.name for file in out.parent.iterdir()] == ["out"]  # no log, nothing half written
    return out


def test_the_image_needs_pinned_libraries_and_few(folder: Path) -> None:
    """Everything is pinned, no large library is in it, and no code that is not the server's."""
    lines = (folder / "requirements.txt").read_text().split()
    assert all(line.count("==") == 1 for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert {"onnxruntime", "numpy", "fastapi", "uvicorn", "prometheus-client"} <= names
    assert names.isdisjoint(ABSENT)
    app = folder / "app" / "patchline"
    assert {"flows", "plugins", "python_api.py"}.isdisjoint(file.name for file in app.iterdir())
    assert (app / "pipeline/registry/serving/page/index.html").is_file()
    assert not list(folder.rglob("__pycache__"))
    assert {file.name for file in (folder / "model" / "artifacts").iterdir()} <= {
        "model.onnx", "model.json", "reference_features.npz"
    }  # fmt: skip


def test_the_image_runs_without_rights(folder: Path) -> None:
    """A slim base, a user who is not root, a health check, and a port above 1024."""
    text = (folder / "Dockerfile").read_text()
    assert f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim\n" in text
    assert "\nUSER 10001:10001\n" in text
    assert "--no-deps -r requirements.txt" in text
    assert "HEALTHCHECK" in text
    assert "ARG" not in text
    assert "PATCHLINE_SERVE_TOKEN" not in text  # no secret in a layer
    entry = json.loads(text.split("ENTRYPOINT ")[1])
    assert entry[:4] == ["python", "-P", "-m", "patchline.pipeline.registry.serving"]
    assert entry[entry.index("--name") + 1] == "Stripes_2.0"
    assert (folder / ".dockerignore").read_text().splitlines()[0] == "*"


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_a_cluster_keeps_it_in_bounds(folder: Path, name: str) -> None:
    """Probes of health, no rights, a file system that is read-only, and the token as a secret."""
    document = next(yaml.safe_load_all((folder / name).read_text()))
    assert document["metadata"]["name"] == "stripes-2-0"
    pod = document["spec"].get("predictor") or document["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] > 35  # the server's own limit
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    resources = container["resources"]
    assert resources["requests"]["memory"].endswith("Mi")
    most = MEMORY_FACTOR * ServingConfig().max_request_mib + 7 * MAX_PIXELS // 2**20
    assert int(resources["limits"]["memory"].removesuffix("Mi")) > most + 400
    assert container["ports"][0]["name"] == "http"
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "stripes-2-0-token"
    assert container["image"] == "stripes-2-0:3"
    service = "stripes-2-0-predictor" if name == "kserve.yaml" else "stripes-2-0"
    assert f"{service}.default.svc.cluster.local" in container["args"]


def test_the_service_leads_to_the_pods(folder: Path) -> None:
    """Its selector is that of the Deployment, its port that of the container."""
    deployment, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_server_that_answers_something_else_is_noticed(
    folder: Path, photos: ComparisonImages
) -> None:
    """Each answer is compared with the package's probability of that image."""
    package = PackagedModel(
        folder / "model/artifacts/model.onnx", folder / "model/artifacts/model.json", 1
    )
    others = package.probabilities(photos.images_NHWC[::-1])
    with pytest.raises(PackagingError, match="where the package answers"):
        check_server(folder, SERVED, photos.images_NHWC, others)


@pytest.mark.parametrize(
    ("name", "resource"),
    [("Flowers_2", "flowers-2"), ("2024.roses", "model-2024-roses"), ("x" * 80, "x" * 50),
     ("_-_", "model")],
)  # fmt: skip
def test_names_are_what_kubernetes_allows(name: str, resource: str) -> None:
    """Lower-case letters, digits and dashes, beginning with a letter."""
    assert ServedVersion(name, "1").resource == resource


_CONFINED = """#!/bin/sh
# As in a cluster: nothing can be written, no home, and a user without any right. The interpreter
# may be in a folder that is closed to others, such as /root; here they reach it.
exec unshare --mount sh -c '
    mount --make-rprivate /
    if [ -n "CLOSED" ]; then
        mkdir PUBLIC/base && mount --bind BASE PUBLIC/base
        mount -t tmpfs -o mode=755 none CLOSED && mkdir -p BASE && mount --bind PUBLIC/base BASE
    fi
    for mounted in $(cut -d" " -f2 /proc/mounts); do
        mount -o remount,bind,ro "$mounted" 2>/dev/null
    done
    touch PUBLIC/written 2>/dev/null && exit 99
    exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all \\
        env -u HOME PYTHON "$@"
' sh "$@"
"""


def _can_confine() -> bool:
    """Return whether this process may confine another one as a cluster does."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


def _confined(python: Path, public: Path) -> Path:
    """Return a program that starts the interpreter as another user, who can write nothing."""
    base = Path(sys.base_prefix).resolve()
    closed = [str(each) for each in base.parents if not each.stat().st_mode & stat.S_IXOTH]
    text = _CONFINED.replace("PYTHON", str(python)).replace("PUBLIC", str(public))
    text = text.replace("CLOSED", closed[-1] if closed else "").replace("BASE", str(base))
    started = public / "confined"
    started.write_text(text)
    started.chmod(0o755)
    return started


_WRITE = """
import sys
from pathlib import Path
from patchline.plugins.tools.export.container_form import ServedVersion, write_container
out = Path(sys.argv[2])
out.mkdir()
write_container(ServedVersion("stripes", "1"), Path(sys.argv[1]), out)
"""


@pytest.fixture
def out_of_wheel(exported_rgb: Exported, tmp_path: Path) -> Path:
    """Return the folder of a container that is written where the wheel is installed."""
    out, python = tmp_path / "out", tmp_path / "venv/bin/python"
    entered = environment_of_wheel(tmp_path / "venv", tmp_path / "source")
    command = [str(python), "-P", "-c", _WRITE, str(exported_rgb.onnx_file.parent), str(out)]
    subprocess.run(command, env=entered, cwd=tmp_path, umask=0o077, check=True)
    return out


@pytest.mark.slow
def test_it_serves_from_an_empty_environment(out_of_wheel: Path) -> None:
    """The pinned libraries are all that it needs; without the token it answers nobody.

    It was written by a Patchline that was installed from its wheel, with a umask that closes files
    to others. The server runs with the rights of the container: as another user, without a home,
    and without a file system that it can write to; where they cannot be taken away, that is skipped
    in the end.
    """
    with tempfile.TemporaryDirectory() as temporary:
        public = Path(temporary)  # other users cannot reach pytest's own folders
        public.chmod(0o755)
        own = public / "out"
        shutil.copytree(out_of_wheel, own)
        own.chmod(0o755)
        venv.create(public / "venv", with_pip=False, symlinks=True)
        python = public / "venv" / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        install = ["install", "-q", "--no-compile", "--no-deps", "-r", "requirements.txt"]
        subprocess.run([*pip, *install], cwd=own, check=True, capture_output=True)
        subprocess.run([*pip, "check"], check=True, capture_output=True)
        confined = _can_confine()
        started = _confined(python, public) if confined else python
        served = ServedVersion("stripes", "1")
        with run_server(own, served, str(started)) as (address, token):
            image = io.BytesIO()
            Image.fromarray(draw_photo(0, 0)).save(image, format="PNG")
            request = urllib.request.Request(f"{address}/predict", data=image.getvalue())
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=patient(30))
            assert refused.value.code == 401
            with urllib.request.urlopen(f"{address}/healthz", timeout=patient(30)) as answer:
                assert answer.status == 200
            request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=patient(30)) as answer:
                label = json.loads(answer.read())["label"]
            artifacts = own / "model" / "artifacts"
            package = PackagedModel(artifacts / "model.onnx", artifacts / "model.json", 1)
            pixels_HWC = package.pixels(image.getvalue())
            best = int(package.probabilities(np.asarray(pixels_HWC)[None]).argmax())
            assert label == package.classes[best]
    if not confined:
        pytest.skip("it serves; as it cannot be confined here, its rights were not seen")


def test_a_package_that_cannot_be_served_says_why(
    folder: Path, photos: ComparisonImages, tmp_path: Path
) -> None:
    """The sentence ends with what its server says last."""
    shutil.copytree(folder / "model", tmp_path / "out/model")
    shutil.copy(folder / "requirements.txt", tmp_path / "out")
    program = tmp_path / "out/app/patchline/pipeline/registry/serving"
    program.mkdir(parents=True)
    for package in (program, *program.parents[:3]):
        (package / "__init__.py").touch()
    (program / "__main__.py").write_text("raise SystemExit('its files are damaged')")
    with pytest.raises(PackagingError, match="its files are damaged"):
        check_server(tmp_path / "out", SERVED, photos.images_NHWC, np.zeros((8, 6)))


def test_the_entry_point_explains_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With code 2, before it listens."""
    given = ("--package", str(tmp_path), "--name", "a", "--model-version", "1")
    assert main((*given, "--host", "0.0.0.0")) == 2  # noqa: S104 - refused
    assert "needs a token" in capsys.readouterr().err
