"""A schedule on a team's work pool: its name, its type, and who executes its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate

from patchline.flows.schedules import work_pools
from patchline.pipeline import local_services
from patchline.pipeline.errors import ConfigError
from tests.conftest import write_photos
from tests.flows.conftest import Command


@pytest.mark.parametrize("name", ["a b", "-gpu", "prefect-x", "patchline-9"])
def test_some_names_are_refused(name: str) -> None:
    """Some are Prefect's own, and some belong to the runners of `patchline up`."""
    assert work_pools.checked_name("A100.80_GB-2")
    with pytest.raises(ConfigError, match="--work-pool"):
        work_pools.checked_name(name)


@pytest.mark.usefixtures("prefect_server")
def test_runs_of_a_pool_work_wherever_its_worker_has_the_folder(
    run_here: Command, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """The deployment names no folder, unlike that of the folder's own runner."""
    write_photos(tmp_path / "photos")
    (tmp_path / "run.yaml").write_text("data: {path: photos}\npreset: none\n", encoding="utf-8")
    common = ("--interval", "1d", "--config", "run.yaml", "--json")
    code, out, err = run_here("schedule", "create", "here", *common)
    assert code == 0, err
    here = client.read_deployment(json.loads(out)["id"])
    assert here.job_variables["working_dir"] == str(tmp_path)
    assert here.work_pool_name == local_services.pool_name(tmp_path)
    code, out, err = run_here("schedule", "create", "there", *common, "--work-pool", "gpu")
    assert code == 0, err
    assert "`patchline worker --work-pool gpu`" in err
    there = client.read_deployment(json.loads(out)["id"])
    assert "working_dir" not in there.job_variables
    assert there.work_pool_name == "gpu"


@pytest.mark.usefixtures("prefect_server")
def test_a_pool_of_another_type_has_workers_of_its_own(
    run_here: Command, client: SyncPrefectClient
) -> None:
    """`patchline worker` serves pools of type process."""
    client.create_work_pool(WorkPoolCreate(name="cluster", type="kubernetes"))
    code, _, err = run_here("worker", "--work-pool", "cluster")
    assert code == 2
    assert "has the type kubernetes" in err
    assert "`prefect worker start --pool cluster`" in err
    code, _, err = run_here("worker", "--work-pool", "gpu", "--max-concurrent-runs", "0")
    assert code == 2
    assert "Choose 1 or more" in err
