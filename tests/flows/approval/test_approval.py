"""Human approval of a promotion: requested, answered, expired, interrupted."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled

from patchline.flows.approval import approval_flow, requests
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry.aliases import CHAMPION
from patchline.pipeline.registry.approval_answer import ApprovalAnswer, refuse_closed
from patchline.pipeline.registry.promotion import Request, promote
from patchline.pipeline.registry.registered_models import summaries
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.flows.approval.approval_parts import (
    NO,
    YES,
    approval_of,
    asked_about,
    carry_on,
    champion,
    kill,
    parting_words,
    start,
    summary,
    versions,
)
from tests.flows.commands.photo_stores import entered_store
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import QUICK


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, prefect_server: str
) -> Iterator[Path]:
    """Return a folder that has a store, while a Prefect server runs."""
    folder = tmp_path_factory.mktemp("approval")
    with entered_store(folder, empty_store, PREFECT_API_URL=prefect_server):
        yield folder
        parting_words()


def test_the_form_of_prefects_page_promotes(here: Path, client: SyncPrefectClient) -> None:
    """The form shows the metrics; an invalid answer is refused, and a valid one promotes."""
    _, better = versions("roses", here, range(60), range(10))
    asked = asked_about(better)
    note = approval_of(better)
    assert (note["state"], note["flow_run_id"]) == ("asked", str(asked.flow_run_id))
    suspended = client.read_flow_run(asked.flow_run_id).state
    assert suspended is not None
    keyset = suspended.state_details.run_input_keyset or {}
    words = client.read_flow_run_input(asked.flow_run_id, keyset["description"])
    assert "Every gate passes (3 of 3)" in words
    assert "+25.0" in words
    schema = json.loads(client.read_flow_run_input(asked.flow_run_id, keyset["schema"]))
    schema = json.loads(schema) if isinstance(schema, str) else schema
    assert schema["properties"]["decision"]["enum"] == ["approve", "reject"]
    assert schema["required"] == ["decision", "who"]
    form = {"decision": "approve", "who": "Ada", "reason": "looks\ngood", "force": False}
    answers: list[tuple[dict[str, Any], str]] = [
        ({}, "REJECT"),
        ({"decision": "perhaps", "who": "Ada"}, "REJECT"),
        ({"decision": "approve", "who": ""}, "REJECT"),
        (form, "ACCEPT"),
    ]
    for answer, status in answers:
        resumed = client.resume_flow_run(asked.flow_run_id, run_input=answer)
        assert resumed.status.value == status
    ended = carry_on(asked)
    assert (ended.state, champion("roses")) == ("Promoted", "2")
    assert ended.message.startswith("approved by Ada: looks good; better than version 1")
    [model] = summaries("roses")
    assert model.history[-1].reason == ended.message
    assert (approval_of(better)["state"], approval_of(better)["by"]) == ("approved", "Ada")
    assert (summary(better).decision or {})["promoted"] is True


@pytest.mark.slow
def test_an_approval_holds_against_one_champion_and_overrules_no_gate(here: Path) -> None:
    """It is requested again if the champion changed; a gate that fails is overruled by force."""
    _, second, third = versions("tulips", here, range(60), range(40), range(40))
    asked = asked_about(third)
    promote(Request(second, QUICK), here / "by_hand")
    assert requests.submit_answer(asked, YES)
    again = carry_on(asked)
    assert (again.waits, champion("tulips")) == (True, "2")
    assert requests.submit_answer(again, YES)
    ended = carry_on(again)
    assert (ended.state, champion("tulips")) == ("Not promoted: a gate failed", "2")
    assert ended.message.startswith("of 200 images")
    assert ended.message.endswith("(although approved by Ada: looks good)")
    with pytest.raises(ModelReferenceError, match=r"tulips/3 is closed: approved by Ada"):
        refuse_closed(third)
    again = asked_about(third)
    assert again.flow_run_id != asked.flow_run_id
    forced = ApprovalAnswer(decision="approve", who="Ada", reason="half the size", force=True)
    assert requests.submit_answer(again, forced)
    assert (carry_on(again).state, champion("tulips")) == ("Promoted", "3")
    [model] = summaries("tulips")
    assert model.history[-1].action == "forced"
    assert "approved by Ada: half the size" in model.history[-1].reason


@pytest.mark.slow
def test_an_answer_survives_the_death_of_the_process(here: Path) -> None:
    """Killed after the answer, and again after the promotion, the flow still ends as it should.

    The form that a killed process did not store is restored, and the flow asks again. The version
    records who rejected it and why; the comparison is logged on its run.
    """
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    _, better, best = versions("violets", here, range(60), range(10), range(2))
    asked = asked_about(better)
    with get_client(sync_client=True) as prefect:
        requests.clear_answer(prefect, asked.flow_run_id, requests.key_against("1"))
    assert requests.submit_answer(asked, YES)
    kill(asked)
    approval_flow.expire_overdue()
    assert requests.refresh(asked).state == "Crashed"  # not at once
    approval_flow.retry_interrupted(requests.refresh(asked), soon)
    assert requests.refresh(asked).state == "Resuming"
    done = Request(better, QUICK, answer=YES, answered_against="1")
    promote(done, here / "killed")  # what the process had done
    ended = carry_on(asked)
    assert (ended.state, champion("violets")) == ("Promoted", "2")
    assert (approval_of(better)["state"], approval_of(better)["by"]) == ("approved", "Ada")
    [model] = summaries("violets")
    assert [entry.to_version for entry in model.history if entry.alias == CHAMPION] == ["1", "2"]
    again = asked_about(best)
    kill(again)
    approval_flow.retry_interrupted(requests.refresh(again), soon)
    again = carry_on(again)
    assert again.waits
    assert requests.submit_answer(again, NO)
    ended = carry_on(again)
    assert (ended.state, ended.message) == ("Not promoted: rejected", "rejected by Ada: blurry")
    assert champion("violets") == "2"
    found = summary(best)
    assert found.decision is not None
    assert (found.decision["promoted"], found.decision["reason"]) == (False, ended.message)
    [place] = [item.path for item in client().list_artifacts(found.run_id, "promotion")]
    files = {Path(item.path).name for item in client().list_artifacts(found.run_id, place)}
    assert files == {"comparison.html", "comparison.json", "decision.json"}


@pytest.mark.slow
def test_one_request_counts_until_it_is_closed(here: Path) -> None:
    """A model has one request, for its newest version, however often it is requested.

    The clock closes it only when it is overdue; what was cancelled in Prefect can be requested
    again. Of answers at once, the one is carried out that was reported to count. Nothing fails
    forever if somebody deletes a version.
    """
    _, second, third = versions("daisies", here, range(60), range(40), range(10))
    older = asked_about(second)
    newer = start(third, QUICK.model_copy(update={"approval_hours": 1e-6}))
    assert start(third).flow_run_id == newer.flow_run_id
    assert carry_on(older).state == "Not promoted: superseded by a newer version"
    assert "the newer version daisies/3 is pending" in str(
        approval_flow.request_approval(second, QUICK)
    )
    overdue = carry_on(newer)
    approval_flow.expire_overdue()
    ended = carry_on(overdue)
    assert (ended.state, champion("daisies")) == ("Not promoted: no answer in time", "1")
    assert ended.message == "nobody answered within 1e-06 hours"
    assert approval_of(third)["state"] == "expired"
    waiting = asked_about(third)
    approval_flow.expire_overdue()
    assert requests.refresh(waiting).waits
    with get_client(sync_client=True) as prefect:
        prefect.set_flow_run_state(waiting.flow_run_id, Cancelled())
    approval_flow.expire_overdue()
    assert approval_of(third)["state"] == "cancelled"
    asked = asked_about(third)
    assert asked.flow_run_id != waiting.flow_run_id
    approval_flow.expire_overdue()
    assert approval_of(third)["state"] == "asked"
    given = [YES, NO, YES, NO]
    told: dict[int, bool] = {}

    def give(number: int) -> None:
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            told[number] = requests.submit_answer(asked, given[number])

    threads = [threading.Thread(target=give, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [counting] = [number for number, counts in told.items() if counts]
    expected = "Promoted" if given[counting] == YES else "Not promoted: rejected"
    assert carry_on(asked).state == expected
    deleted = asked_about(second)
    client().delete_model_version("daisies", second.version)
    assert requests.submit_answer(deleted, YES)
    ended = carry_on(deleted)
    assert ended.state == "Not promoted: the version was deleted"
    assert "'daisies' has no version 2" in ended.message


def test_what_cannot_be_requested_or_answered_is_said(here: Path, run_here: Command) -> None:
    """The first version of a model is champion at once; another one needs a runner that asks.

    The message lists pending versions, and how to request approval.
    """
    first, better = versions("crocuses", here, range(60), range(10))
    assert approval_flow.request_approval(first, QUICK) is None
    assert not deployments.runner_is_up()
    sentence = str(approval_flow.request_approval(better, QUICK))
    assert "`patchline up`" in sentence
    assert "`patchline promote crocuses --version 2 --ask`" in sentence
    start(better)
    for command, words in (
        ("approve crocusses/2", "Did you mean 'crocuses'?"),
        ("approve crocuses/1", "No approval request is open for 'crocuses/1'"),
        ("approve crocuses/1", "crocuses/2"),
        ("promote crocuses --ask --force --reason x", "--ask"),
    ):
        assert words in run_here.refusal(command)
    assert run_here.json("promote crocuses --ask")["asked"] is True
    pending = "pending approval: run `patchline approve crocuses/2`"
    assert pending in run_here.out("models crocuses")
