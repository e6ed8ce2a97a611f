"""Machines that share a Prefect server, each with a folder of the same path: real deployments."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient

from patchline.flows.prefect_api import folder_labels
from patchline.flows.schedules import deployments, work_pools
from patchline.flows.services.runner import FolderWorker
from patchline.pipeline import local_services
from patchline.pipeline.workspace.files.workspace_identity import FILE
from tests.flows.schedules.schedule_parts import every_minute, only_one
from tests.made.servers import Command

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_another_workspace_at_the_same_path_has_schedules_of_its_own(
    run_here: Command, tmp_path: Path, client: SyncPrefectClient
) -> None:
    """Neither sees, replaces or removes those of the other, of the same name; `list` names them."""
    every_minute("nightly")
    first = only_one()
    shutil.move(".patchline", tmp_path / "machine-a")
    assert deployments.deployments() == []
    run_here.refusal("schedule remove nightly")
    _, out, err = run_here("schedule list --json")
    assert json.loads(out) == {"schedules": []}
    assert "Not listed: nightly. Another workspace" in err
    every_minute("nightly")
    second = only_one()
    assert (second.id != first.id, second.name != first.name) == (True, True)
    deployments.remove(second.id)
    shutil.rmtree(".patchline")
    shutil.move(tmp_path / "machine-a", ".patchline")
    assert only_one().id == first.id
    assert client.read_deployment(first.id).labels[folder_labels.ID]


def test_a_deployment_of_an_earlier_version_is_known_by_its_path() -> None:
    """It has no id; and where its schedules are in the common pool, new ones join them."""
    every_minute("nightly")
    own = folder_labels.of(Path())
    assert folder_labels.are_of({folder_labels.FOLDER: own[folder_labels.FOLDER]}, Path())
    assert work_pools.of_folder() == local_services.pool_name(Path())
    every_minute("earlier", work_pool=local_services.POOL)
    assert work_pools.of_folder() == local_services.POOL


def test_a_workspace_without_a_readable_id_is_no_other_workspace() -> None:
    """What has an id does not belong to a folder whose id is not known."""
    every_minute("nightly")
    (Path(".patchline") / FILE).write_text("damaged", encoding="utf-8")
    assert deployments.deployments() == []


def test_a_runner_takes_the_runs_of_its_own_folder_alone(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Also from a pool that the runners of other machines with the same path use."""
    deployments.start(every_minute("nightly"))
    pool = only_one().work_pool_name
    assert pool
    shutil.move(".patchline", tmp_path / "machine-a")
    own = deployments.start(every_minute("nightly"))
    assert only_one().work_pool_name == pool

    async def due() -> list[UUID]:
        async with FolderWorker(work_pool_name=pool) as worker:
            return [each.flow_run.id for each in await worker._get_scheduled_flow_runs()]

    found = asyncio.run(due())
    assert own in found
    assert {client.read_flow_run(each).deployment_id for each in found} == {only_one().id}
