"""What all tests share: a quiet environment, small real images, and one real run."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from PIL import Image

from patchline.pipeline import quiet_libraries
from patchline.pipeline.local_services import MLFLOW_VARIABLES
from tests import patience, postgres_server
from tests.object_server import ObjectServer, object_server
from tests.patience import patient
from tests.postgres_server import PostgresServer
from tests.process_owners import Owners
from tests.surroundings import OF_OTHERS, recording_proxy

# Tests work in folders of their own. With those on the path, what is installed would be looked up
# again in every test.
sys.path[:] = [folder for folder in sys.path if folder]
quiet_libraries.apply()
# Prefect lists all time zones for each schedule that it reads.
zoneinfo.available_timezones = cache(zoneinfo.available_timezones)
# The same examples each time, however slowly a busy machine makes them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two tests run at a time
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the same modules
for _cache in ("HF_HOME", "TORCH_HOME"):  # plans look for weights there
    os.environ[_cache] = "/nowhere"
for _folder in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(_folder, None)
SERVER_SECRET = "of-the-tests-own-prefect-servers"  # noqa: S105 - it guards nothing
os.environ["PREFECT_API_AUTH_STRING"] = f"patchline:{SERVER_SECRET}"  # before Prefect is imported
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - pytest makes a private folder in it
_MEMORY_NEEDED = 6 * 2**30
"""Bytes: several times what the folders of a whole session hold at once."""
_MEMORY_OF_A_PROCESS, _MOST_PROCESSES = 5 * 2**30, 6
"""Bytes of a process of tests with what it starts; more processes would wait for the same servers
and modules."""
_SLOWER = 5
"""How many times as long as the others a slow test may take before it is called hung."""
_ROOT_OF_FOLDERS = "PYTEST_DEBUG_TEMPROOT"
PREFECT_DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
PATCHLINE = Path(sys.executable).parent / "patchline"
LOADED_MODULES = Path(__file__).with_name("loaded_modules.py")


def _keep_folders_in_memory() -> None:
    """Put the folders of the tests where no commit waits for a disk, if there is room for them."""
    if _ROOT_OF_FOLDERS in os.environ or not os.path.ismount(_MEMORY_DISK):
        return
    room = min(shutil.disk_usage(_MEMORY_DISK).free, psutil.virtual_memory().available // 2)
    if room >= _MEMORY_NEEDED:
        os.environ[_ROOT_OF_FOLDERS] = str(_MEMORY_DISK)


def pytest_configure(config: pytest.Config) -> None:
    """Measure how patient to be, and let every process have an owner."""
    gc.disable()  # until everything is imported: nothing of it can be freed
    _keep_folders_in_memory()
    patience.factor()
    config.pluginmanager.register(Owners(config), "owners")


pytest_plugins = ["tests.made.servers"]
_TOGETHER = {
    f"tests/{module}.py": group
    for group, modules in {
        "servers": """
            flows/services/test_services flows/services/test_doors flows/services/test_down
        """,
        "team stores": """
            flows/services/test_tried_stores flows/services/test_team_stores
            plugins/tools/sweep/test_study_database
        """,
        "Prefect server": """
            flows/approval/test_approval flows/closing/test_close_runs
            flows/new_data/test_data_watch flows/notifications/test_webhooks
            flows/schedules/test_missed_runs flows/schedules/test_prediction_flow
            flows/schedules/test_same_path flows/schedules/test_schedules
            flows/schedules/test_work_pools flows/test_wrong_input
            flows/training/test_prefect_progress flows/training/test_reuse
            plugins/tools/monitor/test_monitor_flow plugins/tools/test_tools
        """,
    }.items()
    for module in modules.split()
}
"""Modules that share a fixture of the session which takes seconds: one process runs them all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each module to one process, and modules with the same servers to the same process."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "loadscope":
        return None
    scheduler = LoadScopeScheduling(config, log)
    module_of = scheduler._split_scope
    scheduler._split_scope = lambda test: _TOGETHER.get(module_of(test), module_of(test))
    return scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run one process more than there are cores, as some wait for servers, and memory for each.

    Slow tests wait longer: two more.
    """
    from patchline.pipeline.data.reading.child_processes import processors

    by_memory = psutil.virtual_memory().total // _MEMORY_OF_A_PROCESS
    more = 1 if config.getoption("markexpr") == "not slow" else 2
    return max(2, min(processors() + more, by_memory, _MOST_PROCESSES))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest modules, so that no process is left alone with one at the end.

    The first makes the finished run, so the second is one that does not wait for that. No test has
    a deadline of its own: a mark on it would not count.
    """
    first = ("test_docs.py", "test_services.py", "test_doors.py", "test_down.py")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    places = {name: place for place, name in enumerate((*first, "test_two_nodes.py"))}
    items.sort(key=lambda item: (places.get(item.path.name, len(places)), item.path not in slow))
    usual = float(config.getini("timeout"))
    for item in items:
        seconds = usual * (_SLOWER if item.get_closest_marker("slow") else 1)
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported, which stays until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_prefect_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep Prefect's database out of the home of whoever runs the tests; make one, not one each."""
    home = tmp_path_factory.mktemp("prefect_home")
    if any(_starts_prefect(item) for item in request.session.items):
        shutil.copy(request.getfixturevalue("empty_prefect"), home / "prefect.db")
    os.environ["PREFECT_HOME"] = str(home)
    os.environ[PREFECT_DATABASE] = f"sqlite+aiosqlite:///{home / 'prefect.db'}"
    os.environ.pop("PREFECT_API_URL", None)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.chdir(home)  # what fixtures of whole modules leave where they run does not belong here


@pytest.fixture
def _what_libraries_set() -> Iterator[None]:
    """Forget the variables that libraries have set, last of all: a patch may bring them back."""
    yield
    for name in ("MLFLOW_TRACKING_URI", "_MLFLOW_SERVER_ARTIFACT_ROOT", *MLFLOW_VARIABLES):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _own_folder(_what_libraries_set: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in a folder of its own, with a store and random numbers of its own."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)  # the same weights, whatever ran before
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PATCHLINE_WEIGHTS", raising=False)
    for name in ("PATCHLINE_WORKSPACE", "PATCHLINE_PLUGIN_FILES"):
        monkeypatch.setenv(name, "")  # so that what a command sets goes with the test


def draw_photo(label: int, variant: int, side: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an RGB image (side, side, 3) whose stripes tell its class: easy, but not trivial."""
    generator = np.random.default_rng([label, variant])
    rows, columns = np.mgrid[0:side, 0:side]
    axis = (rows, columns, rows + columns, rows - columns)[label % 4]
    stripes = np.sin(axis * 2 * np.pi / 8 + generator.uniform(0, 2 * np.pi))
    colour = generator.uniform(0.3, 1.0, 3)
    noise = generator.normal(0, 0.15, (side, side, 3))
    values = 127 + 90 * stripes[:, :, None] * colour + 127 * noise
    drawn: np.ndarray[Any, np.dtype[np.uint8]] = np.clip(values, 0, 255).astype(np.uint8)
    return drawn


def write_photos(root: Path, classes: int = 3, images: int = 20, side: int = 32) -> Path:
    """Write a folder with one subfolder of PNG files for each class, and return it."""
    names = ("across", "down", "rising", "falling")[:classes]
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True, exist_ok=True)
        for variant in range(images):
            image = Image.fromarray(draw_photo(label, variant, side))
            image.save(root / name / f"{variant:03d}.png")
    return root


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by their paths in it."""
    files = (each for each in folder.rglob("*") if each.is_file())
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in files}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of 60 small RGB images in 3 classes: across, down, rising."""
    return write_photos(tmp_path / "photos")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output."""
        return json.loads(self.out)


def _words(command: str | Path, *arguments: str | Path) -> list[str]:
    """Return the words of a command line: its first argument may be several."""
    return [*str(command).split(), *map(str, arguments)]


def patchline(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 300
) -> Finished:
    """Run the command `patchline` as a user would, in a process of its own."""
    done = subprocess.run(
        [str(PATCHLINE), *_words(*arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=patient(timeout),
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def patchline_here(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> Finished:
    """Run the command in this process, which spares the seconds of its imports.

    What it sets in the environment goes with it.
    """
    from patchline.flows.command_line import run_command_line

    before = dict(os.environ)
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        os.environ.update(env or {})
        try:
            code = run_command_line(_words(*arguments))
        finally:
            os.environ.clear()
            os.environ.update(before)
    return Finished(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Run:
    """One finished `patchline run`: where it ran and what it printed."""

    folder: Path
    summary: dict[str, Any]

    @property
    def tracking_uri(self) -> str:
        """The store of the run."""
        return str(self.summary["tracking_uri"])


def _starts_prefect(item: pytest.Item) -> bool:
    folders = {"flows", "browser", "structure"} & set(item.path.parts)
    return bool(folders) or "finished_run" in getattr(item, "fixturenames", ())


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all test processes of the session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def empty_prefect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty Prefect database to copy: its hundred migrations take seconds."""
    shared = shared_folder(tmp_path_factory)
    file, unfinished = shared / "empty_prefect.db", shared / "unfinished_prefect.db"
    program = "from patchline.flows.prefect_api import prefect_database; prefect_database.upgrade()"
    database = {PREFECT_DATABASE: f"sqlite+aiosqlite:///{unfinished}"}
    with FileLock(shared / "empty_prefect.lock"):
        if not file.exists():
            subprocess.run(
                [sys.executable, "-P", "-c", program],
                env={**os.environ, "PREFECT_HOME": str(shared), **database},
                check=True,
                timeout=patient(300),
            )
            unfinished.rename(file)
    return file


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty SQLite store to copy: MLflow takes seconds to make one."""
    shared = shared_folder(tmp_path_factory)
    file = shared / "empty_store.db"
    with FileLock(shared / "empty_store.lock"):
        if not file.exists():
            from patchline.pipeline.workspace.tracking.tracking_store import client

            unfinished = shared / "unfinished_store.db"
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{unfinished}")
                client().search_experiments()
            shutil.copy(unfinished, file)
    return file


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a PostgreSQL server; a test that needs it is skipped where there is none."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with postgres_server.postgres_server() as server:
        yield server


@pytest.fixture
def own_store(empty_store: Path, tmp_path: Path) -> None:
    """Give a test a store of its own where it runs."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Run a server that speaks S3's protocol."""
    with object_server(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def bucket(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an empty bucket that this process, and what it starts, can use."""
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    return objects.new_bucket()


@pytest.fixture(scope="session")
def finished_run(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path, empty_store: Path
) -> Run:
    """Return one real run of the whole flow on small photos; tests must not change it.

    It has the surroundings of a company laptop, see `test_prefect_settings.py`, and of a project
    with packages of the names of our folders. Its database of Prefect is `prefect.db`. All test
    processes share it: the first that asks makes it.
    """
    shared = shared_folder(tmp_path_factory)
    folder = shared / "finished_run"
    summary = folder / "summary.json"
    with FileLock(shared / "finished_run.lock"):
        if not summary.exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_photos(folder / "photos", images=40)
            shutil.copy(empty_prefect, folder / "prefect.db")
            shutil.copy(empty_store, folder / "mlflow.db")
            for name in ("flows", "pipeline", "plugins"):  # of a project; ours never import them
                package = folder / "own_packages" / name
                package.mkdir(parents=True)
                (package / "__init__.py").write_text(f"raise ImportError({name!r})\n", "utf-8")
            shutil.copy(LOADED_MODULES, folder / "own_packages" / "sitecustomize.py")
            given = {
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
                PREFECT_DATABASE: f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
                "PYTHONPATH": str(folder / "own_packages"),
            }
            arguments = ("run", "photos", "--preset", "none", "--training.epochs", "12", "--json")
            (folder / "prefect.toml").write_text(OF_OTHERS, encoding="utf-8")
            with recording_proxy() as proxy:
                done = patchline(*arguments, cwd=folder, env={**proxy.environment, **given})
            (folder / "prefect.toml").unlink()
            (folder / "heard_by_proxy.txt").write_text("\n".join(proxy.heard), "utf-8")
            assert done.code == 0, done.err
            with contextlib.closing(sqlite3.connect(folder / "prefect.db")) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that one file is all
            summary.write_text(done.out, encoding="utf-8")
    return Run(folder, json.loads(summary.read_text(encoding="utf-8")))
