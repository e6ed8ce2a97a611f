"""Take the screenshots of README and docs/how_to/browse.md.

    python -m benchmarks.screenshots [FOLDER]
    python -m benchmarks.screenshots --own-pages [FOLDER]

The first starts the servers in a new folder, trains three small models on the digits, makes a
schedule, and opens the pages in headless Chromium. The pictures go to docs/images, or to FOLDER.
With `--servers PREFECT MLFLOW` it shows what is in servers that run already, and trains nothing.

`--own-pages` takes the README's pictures of Patchline's own pages: the report of a run on the
digits, and the page that asks for labels of images that the model has not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured_runs import PATCHLINE
from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from tests.browser.chromium import Browser, browser
from tests.flows.services.local_servers import proof

ROOT = Path(__file__).resolve().parents[1]
_WIDTH = 1400
_COLOURS = 128
_INBOX = 60
"""Images that have no label."""
_TRAININGS = (
    ("--model.name", "vit", "--model.patch-embedding.name", "linear"),
    ("--model.name", "vit", "--model.patch-embedding.name", "conv_stem"),
    ("--model.name", "cct"),
)


class Servers(NamedTuple):
    """Where the pages are, and how to log in to those of `patchline up`."""

    prefect: str
    mlflow: str
    link: str = ""
    """Signs the browser in."""
    proof: Mapping[str, str] = {}
    """Headers of a program's question."""


class Newest(NamedTuple):
    """The newest run, as both servers know it."""

    run: TrackedRun
    model: str
    version: str
    flow_run: str
    summary: str
    """Id of the artifact with the verdict."""


def main() -> None:
    """Take every picture and print its size."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "images")
    options.add_argument("--own-pages", action="store_true")
    options.add_argument("--servers", nargs=2, metavar=("PREFECT", "MLFLOW"))
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.own_pages:
        with tempfile.TemporaryDirectory() as folder:
            take_own_pages(Path(folder), given.folder)
    elif given.servers:
        take_all(Servers(*(address.rstrip("/") for address in given.servers)), given.folder)
    else:
        with tempfile.TemporaryDirectory() as folder, _own_servers(Path(folder)) as servers:
            take_all(servers, given.folder)
    for file in sorted(given.folder.glob("*.png")):
        print(f"{file.stat().st_size / 1000:6.0f} kB  {file.name}")


def take_own_pages(workspace: Path, folder: Path) -> None:
    """Take the pictures of the report and of the page that asks for labels."""
    run = json.loads(_patchline(workspace, "run", "--json"))
    digits = sorted((workspace / ".patchline" / "sources" / "digits").rglob("*.png"))
    (workspace / "inbox").mkdir()
    for number, image in enumerate(digits[:: len(digits) // _INBOX]):
        shutil.copy(image, workspace / "inbox" / f"{number:04}.png")
    asking = (str(PATCHLINE), "label", "inbox", "--model", "digits@champion", "--json")
    with (
        subprocess.Popen(asking, cwd=workspace, stdout=subprocess.PIPE, text=True) as page,
        browser(_WIDTH, 900) as window,
    ):
        try:
            _take(window, Path(run["report"]).as_uri(), ("Metrics",), folder, "report_page", 900)
            answer = ""
            for line in page.stdout or ():
                answer += line
                if line.endswith("}\n"):
                    break
            _take(window, json.loads(answer)["url"], ("images labelled",), folder, "label", 700)
        finally:
            page.terminate()


def take_all(servers: Servers, folder: Path) -> None:
    """Take the pictures of the newest run and of everything around it."""
    newest = _newest(servers)
    with browser(_WIDTH, 900) as window:
        if servers.link:
            window.sign_in(servers.link)
        _mlflow_pictures(window, servers.mlflow, newest, folder)
        _prefect_pictures(window, servers.prefect, newest, folder)


def _mlflow_pictures(window: Browser, server: str, newest: Newest, folder: Path) -> None:
    experiment = newest.run.experiment_id
    window.close_assistant(server)
    _take(window, f"{server}/{saved_views.path(experiment)}", ("Best models",), folder, "runs", 520)
    curves = f"{server}/{saved_views.path(experiment, saved_views.CURVES)}"
    _take(window, curves, ("Curves", "Images", "augmentation"), folder, "curves", 1560)
    run = f"{server}/{addresses.run_path(newest.run)}"
    _take(window, run, ("Registered as",), folder, "run", 520)
    report = f"{server}/{addresses.report_path(newest.run)}"
    _take(window, report, ("test images classified correctly",), folder, "report", 900)
    version = f"{server}/{addresses.model_path(newest.model, newest.version)}"
    _take(window, version, ("data version",), folder, "version", 900)


def _prefect_pictures(window: Browser, server: str, newest: Newest, folder: Path) -> None:
    pages = f"{server}/v2"
    flow_run = f"{pages}/runs/flow-run/{newest.flow_run}"
    _take(window, flow_run, ("validation accuracy",), folder, "flow_run", 1100)
    summary = f"{pages}/artifacts/artifact/{newest.summary}"
    _take(window, summary, ("test images classified correctly",), folder, "summary", 900)
    _take(window, f"{pages}/deployments", ("Deployments",), folder, "deployments", 500)


def _take(
    window: Browser, address: str, texts: tuple[str, ...], folder: Path, name: str, height: int
) -> None:
    window.size(_WIDTH, height)
    window.open(address, *texts)
    time.sleep(4)  # charts and graphs are drawn after the words
    file = folder / f"{name}.png"
    window.hide(tempfile.gettempdir())  # the folder of this machine that the run was made in
    window.picture(file)
    _make_smaller(file)


def _make_smaller(file: Path) -> None:
    """Keep as many colours as a page of text needs."""
    from PIL import Image

    with Image.open(file) as image:
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def _newest(servers: Servers) -> Newest:
    flow_runs = _ask(
        servers,
        f"{servers.prefect}/api/flow_runs/filter",
        {"sort": "START_TIME_DESC", "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}},
    )
    flow_run = next(one for one in flow_runs if any("mlflow:" in tag for tag in one["tags"]))
    run_id = next(tag for tag in flow_run["tags"] if "mlflow:" in tag).removeprefix("mlflow:")
    artifacts = _ask(
        servers,
        f"{servers.prefect}/api/artifacts/filter",
        {"artifacts": {"key": {"any_": ["summary"]}, "flow_run_id": {"any_": [flow_run["id"]]}}},
    )
    api = f"{servers.mlflow}/api/2.0/mlflow"
    run = _ask(servers, f"{api}/runs/get?run_id={run_id}")["run"]
    found = _ask(servers, f"{api}/model-versions/search?filter=run_id%3D'{run_id}'")
    versions = found["model_versions"]
    return Newest(
        TrackedRun(run_id, run["info"]["experiment_id"], Path()),
        versions[0]["name"],
        versions[0]["version"],
        flow_run["id"],
        artifacts[0]["id"],
    )


def _ask(servers: Servers, address: str, question: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 - servers that the caller named
        address,
        data=json.dumps(question).encode() if question is not None else None,
        headers={"content-type": "application/json", **servers.proof},
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - the same
        return json.load(response)


@contextmanager
def _own_servers(folder: Path) -> Iterator[Servers]:
    """Start the servers of a new folder, and let them show something."""
    up = json.loads(_patchline(folder, "up", "--json"))
    try:
        for number, choice in enumerate(_TRAININGS):
            length = ("--preset", "none", "--training.epochs", str(15 + 5 * number))
            run = json.loads(_patchline(folder, "run", *length, *choice, "--json"))
        when = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
        _patchline(folder, "schedule", "create", "nightly", *when, "--config", run["config"])
        prefect, mlflow = up["prefect_url"].rstrip("/"), up["mlflow_url"].rstrip("/")
        yield Servers(prefect, mlflow, up["prefect_login_url"], proof(folder))
    finally:
        _patchline(folder, "down", "--now")


def _patchline(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(PATCHLINE), *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"patchline {' '.join(arguments)} ended with code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
