"""Stores with registered versions, made once and copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from patchline.pipeline.registry.promotion import assign_aliases
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from tests.pipeline.registry.made_versions import QUICK, make_version, registered_version

METRICS = {"accuracy": 0.9, "log_loss": 0.2, "ece": 0.03}


def _copy(made: Path, folder: Path) -> None:
    """Copy a store with its files; the paths in it then name the copy."""
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("mlflow.db*"), dirs_exist_ok=True)
    with (
        closing(sqlite3.connect(made / "mlflow.db")) as source,
        closing(sqlite3.connect(folder / "mlflow.db")) as copy,
    ):
        source.backup(copy)
        for (table,) in copy.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            for _, column, *_ in copy.execute(f"PRAGMA table_info({table})").fetchall():
                copy.execute(
                    f'UPDATE {table} SET "{column}" = replace("{column}", ?1, ?2) '  # noqa: S608 - MLflow's own names
                    f'WHERE instr("{column}", ?1)',
                    (f"{made}", f"{folder}"),
                )
        copy.commit()


@pytest.fixture(scope="session")
def made_stores(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> tuple[Path, ...]:
    """Return stores of a version without an alias, of it as champion, and of two versions.

    The first is wrong on 60 of 200 images, and the second on none.
    """
    stores = tuple(tmp_path_factory.mktemp("store", numbered=True) for _ in range(3))
    registered, champion, challenger = stores
    shutil.copy(empty_store, registered / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:

        def use(store: Path) -> None:
            patch.chdir(store)
            patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")

        use(registered)
        registered_version("roses", registered, wrong=range(60), metrics=METRICS)
        _copy(registered, champion)
        use(champion)
        assign_aliases(resolve("roses/1"), QUICK, champion / "aliases")
        _copy(champion, challenger)
        use(challenger)
        make_version("roses", challenger)
    return stores


@pytest.fixture
def registered(own_store: None, made_stores: tuple[Path, ...], tmp_path: Path) -> ModelReference:
    """Return the only version of `roses`, which has metrics and no alias yet."""
    del own_store  # which this one replaces, wherever it is asked for
    _copy(made_stores[0], tmp_path)
    return resolve("roses/1")


@pytest.fixture
def champion(own_store: None, made_stores: tuple[Path, ...], tmp_path: Path) -> ModelReference:
    """Return the champion of `roses`, its only version, which is wrong on 60 of 200 images."""
    del own_store  # which this one replaces, wherever it is asked for
    _copy(made_stores[1], tmp_path)
    return resolve("roses/1")


@pytest.fixture
def challenger(own_store: None, made_stores: tuple[Path, ...], tmp_path: Path) -> ModelReference:
    """Return version 2 of `roses`, which makes no mistake and is not champion yet."""
    del own_store  # which this one replaces, wherever it is asked for
    _copy(made_stores[2], tmp_path)
    return resolve("roses/2")
