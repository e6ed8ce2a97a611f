"""A schedule on a team's work pool: its name, its type, who executes its runs, and their limits."""

from __future__ import annotations

import io
import json
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from patchline.flows.progress import progress_display
from patchline.flows.schedules import work_pools
from patchline.flows.training import stage_tasks
from patchline.pipeline import local_services
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from tests.conftest import write_photos
from tests.made.servers import Command
from tests.patience import until


@pytest.mark.parametrize("name", ["a b", "-gpu", "prefect-x", "patchline-9"])
def test_some_names_are_refused(name: str) -> None:
    """Some are Prefect's own, and some belong to the runners of `patchline up`."""
    assert work_pools.check_name("A100.80_GB-2")
    with pytest.raises(ConfigError, match="--work-pool"):
        work_pools.check_name(name)


@pytest.mark.usefixtures("prefect_server")
def test_runs_of_a_pool_work_wherever_its_worker_has_the_folder(
    run_here: Command, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """The deployment names no folder, unlike that of the folder's own runner."""
    write_photos(tmp_path / "photos", images=4)
    (tmp_path / "run.yaml").write_text("data: {path: photos}\npreset: none\n", encoding="utf-8")
    common = ("--interval", "1d", "--config", "run.yaml")
    here = client.read_deployment(run_here.json("schedule create here", *common)["id"])
    assert here.job_variables["working_dir"] == str(tmp_path)
    assert here.work_pool_name == local_services.pool_name(tmp_path)
    code, out, err = run_here("schedule create there", *common, "--work-pool", "gpu", "--json")
    assert (code, "`patchline worker --work-pool gpu`" in err) == (0, True), err
    there = client.read_deployment(json.loads(out)["id"])
    assert "working_dir" not in there.job_variables
    assert there.work_pool_name == "gpu"


@pytest.mark.usefixtures("prefect_server")
def test_a_pool_of_another_type_has_workers_of_its_own(
    run_here: Command, client: SyncPrefectClient
) -> None:
    """`patchline worker` serves pools of type process."""
    client.create_work_pool(WorkPoolCreate(name="cluster", type="kubernetes"))
    err = run_here.refusal("worker --work-pool cluster")
    for words in ("has the type kubernetes", "`prefect worker start --pool cluster`"):
        assert words in err
    none = ("--work-pool", "gpu", "--max-concurrent-runs", "0")
    assert "Choose 1 or more" in run_here.refusal("worker", *none)


@pytest.mark.usefixtures("prefect_server")
def test_a_task_that_trains_has_the_tags_that_are_limited(client: SyncPrefectClient) -> None:
    """It has both if the server does not answer, because one of them may be limited."""
    config = RunConfig.model_validate({"training": {"device": "cuda"}})
    assert stage_tasks.training_tags(config) == set()
    client.create_concurrency_limit(tag="gpu", concurrency_limit=1)
    assert stage_tasks.training_tags(config) == {"gpu"}
    client.create_concurrency_limit(tag="training", concurrency_limit=1)
    assert stage_tasks.training_tags(config) == {"gpu", "training"}
    client.delete_concurrency_limit_by_tag("gpu")
    assert stage_tasks.training_tags(config) == {"training"}
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert stage_tasks.training_tags(config) == {"gpu", "training"}


@pytest.mark.usefixtures("prefect_server")
def test_a_task_that_waits_for_a_slot_says_so_until_it_begins(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has the tag and the command that shows the limit."""
    monkeypatch.setattr(stage_tasks, "_FIRST_SECONDS", 0.2)
    monkeypatch.setattr(stage_tasks, "_SECONDS", 0.2)
    client.create_concurrency_limit(tag="training", concurrency_limit=1)
    first = uuid4()
    client.increment_v1_concurrency_slots(["training"], first)
    said = io.StringIO()
    with (
        progress_display.show_progress(said),
        stage_tasks.watch_slots(["gpu", "training"]) as begun,
    ):
        until(lambda: "waiting" in said.getvalue(), "it said nothing")
        begun.set()
    assert (
        "waiting: 1 other run has all slots of the limit on the tag training "
        "(`prefect concurrency-limit inspect training` shows it)"
    ) in said.getvalue()
    assert "gpu" not in said.getvalue()
    client.decrement_v1_concurrency_slots(["training"], first, 1.0)
    assert stage_tasks.full_limits(["training"]) == []
