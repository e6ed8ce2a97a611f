"""Schedules on a real Prefect server: the commands, the deployments, what was missed."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Pending, Running

from patchline.flows.schedules import deployments
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError, OrchestrationError
from tests.conftest import write_photos
from tests.flows.schedules.schedule_parts import every_minute, only_one
from tests.made.servers import Command

pytestmark = pytest.mark.usefixtures("prefect_server")

_NIGHTLY = ("schedule create nightly --cron", "0 2 * * *", "--timezone", "Europe/Berlin")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return a config file in the test's folder, for photos that its own path leads to."""
    write_photos(tmp_path / "photos", classes=2, images=4)
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: flowers\ndata: {source: image_folder, path: photos}\n"
        "model: {name: vit, embed_dim: 48}\ntraining: {epochs: 3}\n",
        encoding="utf-8",
    )
    return file


def test_a_schedule_is_created_listed_paused_resumed_run_and_removed(
    run_here: Command, config_file: Path, client: SyncPrefectClient
) -> None:
    """The whole life of a schedule through the commands, as text and as JSON.

    The form in Prefect has the help. A plugin's settings are free there, others are not: Prefect's
    own reason stands in the sentence.
    """

    def listed() -> dict[str, Any]:
        [shown] = run_here.json("schedule list")["schedules"]
        return dict(shown)

    out = run_here.out(*_NIGHTLY, "--config", config_file.name)
    for words in ("Created schedule 'nightly'", "0 2 * * * Europe/Berlin"):
        assert words in out
    shown = listed()
    assert (shown["name"], shown["kind"], shown["trigger"]) == ("nightly", "train", "0 2 * * *")
    assert (shown["timezone"], shown["paused"], shown["last"]) == ("Europe/Berlin", False, None)
    assert (shown["config_file"], shown["config_changed"]) == (str(config_file), False)
    coming = dt.datetime.fromisoformat(shown["next"])
    assert dt.timedelta() < coming - dt.datetime.now(dt.UTC) <= dt.timedelta(hours=25)
    for _ in range(2):  # to pause what is paused is no error
        run_here.out("schedule pause nightly")
    shown = listed()
    assert (shown["paused"], shown["next"]) == (True, None)
    out = run_here.out("schedule list")
    for words in ("paused", f"trains on {config_file.parent / 'photos'}, run.yaml"):
        assert words in out
    run_here.json("schedule resume nightly")
    deployment = only_one()
    assert not deployments.is_paused(deployment)
    schema = deployment.parameter_openapi_schema or {}
    epochs = schema["definitions"]["TrainingConfig"]["properties"]["epochs"]
    assert "Passes over the training split" in epochs["description"]
    assert epochs["default"] == RunConfig().training.epochs
    own = {"config": {"model": {"name": "vit", "embed_dim": 96, "depth": 2}}}
    run = client.read_flow_run(deployments.start(deployment.id, parameters=own))
    assert run.parameters["config"] == own["config"]
    with pytest.raises(OrchestrationError, match=r"409.*epoch"):
        deployments.start(deployment.id, parameters={"config": {"training": {"epoch": 2}}})
    code, out, err = run_here("schedule run-now nightly --json")
    assert (code, "patchline up" in err) == (0, True)  # nobody runs it here
    started = json.loads(out)
    assert started["page"].endswith(started["flow_run_id"])
    states: list[State[Any]] = [Pending(), Running(), Completed()]
    for state in states:
        client.set_flow_run_state(UUID(started["flow_run_id"]), state)
    last = listed()["last"]
    assert (last["state"], last["flow_run_id"]) == ("Completed", started["flow_run_id"])
    assert dt.datetime.fromisoformat(last["at"]) <= dt.datetime.now(dt.UTC)
    run_here.out("schedule remove nightly")
    assert run_here.json("schedule list") == {"schedules": []}
    assert "No schedules in this folder yet" in run_here.out("schedule list")
    with pytest.raises(OrchestrationError, match="patchline schedule list"):
        deployments.start(deployment.id)


def test_a_schedule_keeps_the_settings_that_it_was_created_with(
    run_here: Command, config_file: Path
) -> None:
    """The stored config is complete, with absolute paths; `list` says that the file has changed.

    The same name again takes the file as it is now, in the same deployment.
    """
    create = (*_NIGHTLY, "--config", config_file)
    run_here.out(*create)
    before = only_one()
    stored = RunConfig.model_validate(before.parameters["config"])
    assert (stored.training.epochs, stored.model.settings["embed_dim"]) == (3, 48)
    assert "dropout" in stored.model.settings  # the plugin's defaults are written out
    assert stored.data.path == str(config_file.parent / "photos")
    config_file.write_text(config_file.read_text().replace("epochs: 3", "epochs: 5"))
    assert "run.yaml has changed since" in run_here.out("schedule list")
    assert only_one().parameters == before.parameters
    assert "Updated schedule 'nightly'" in run_here.out(*create)
    assert (only_one().id, only_one().parameters["config"]["training"]["epochs"]) == (before.id, 5)
    assert "changed since" not in run_here.out("schedule list")
    config_file.unlink()
    assert "run.yaml was deleted since" in run_here.out("schedule list")


_TRAIN = "x --interval 2h --config run.yaml"
_PREDICT = "x --interval 2h --predict m"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"create {_TRAIN} --cron '0 2 * * *'", "mutually exclusive"),
        ("create x --cron '0 25 * * *' --config run.yaml", "hour 25: 0 to 23"),
        ("create a/b --interval 2h --config run.yaml", "name is 'a/b'"),
        ("create x --interval 2h --config plugin.yaml", "model.embed_dims"),
        ("create x --interval 2h --config nodata.yaml", "nowhere"),
        (f"create {_PREDICT}", "also needs --images"),
        (f"create {_TRAIN} --out a.csv", "--out is for predictions"),
        (f"create {_PREDICT} --images photos --out a.txt", "must end in .csv or .parquet"),
        (f"create {_PREDICT} --images photos --out a.csv", "no registered model 'm'"),
        ("pause x", "this folder has none"),
    ],
)
def test_wrong_input_is_one_sentence(
    run_here: Command, config_file: Path, command: str, said: str
) -> None:
    """The exit code is 2, there is no trace, and nothing was created."""
    folder = config_file.parent
    (folder / "plugin.yaml").write_text("model: {name: vit, embed_dims: 2}", encoding="utf-8")
    (folder / "nodata.yaml").write_text(
        "data: {source: image_folder, path: nowhere}", encoding="utf-8"
    )
    assert said in run_here.refusal("schedule", *shlex.split(command))
    assert deployments.deployments() == []


def test_without_a_server_the_sentence_says_how_to_start_one(
    run_here: Command, config_file: Path
) -> None:
    """Neither a configured server nor `patchline up`: exit code 1, and what to do."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert "patchline up" in run_here.refusal(*_NIGHTLY, "--config", config_file, code=1)
    away = "http://127.0.0.1:9/api"
    with temporary_settings({PREFECT_API_URL: away}):
        err = run_here.refusal("schedule list", code=1)
    assert (away in err, "does not answer" in err) == (True, True)


def test_a_name_belongs_to_a_schedule_or_to_a_watch(run_here: Command) -> None:
    """The commands take a name alone, so two kinds cannot share one; a wrong one is corrected."""
    every_minute("flowers")
    with pytest.raises(ConfigError, match="already used by a schedule"):
        every_minute("flowers", labels={deployments.KIND: "watch"})
    err = run_here.refusal("schedule run-now flwers")
    assert "Did you mean 'flowers'? Choose from: flowers." in err
    run_here.out("schedule remove flowers")
