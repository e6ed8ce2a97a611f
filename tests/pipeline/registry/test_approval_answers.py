"""The approver's answer together with the gates, and the question that the approver sees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry import approval_question
from patchline.pipeline.registry.aliases import CHAMPION
from patchline.pipeline.registry.approval_answer import NOBODY, ApprovalAnswer
from patchline.pipeline.registry.approval_question import Question, prepare_question
from patchline.pipeline.registry.promotion import Promotion, Request, promote
from patchline.pipeline.registry.registered_models import ModelReference, resolve, summaries
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.registry.made_versions import QUICK, champion_version, make_version

YES = ApprovalAnswer(decision="approve", who="Ada", reason="looks good")
NO = ApprovalAnswer(decision="reject", who="Ada", reason="blurry")


def _decided(
    reference: ModelReference,
    folder: Path,
    answer: ApprovalAnswer,
    *,
    force: str | None = None,
) -> Promotion:
    request = Request(reference, QUICK, force, answer=answer, answered_against="1")
    decision, _ = promote(request, folder / "promotion")
    assert decision is not None
    return decision


def test_an_answer_and_the_gates_decide_together(
    challenger: ModelReference, tmp_path: Path
) -> None:
    """A rejection always counts; an approval needs the gates or force; the history names who.

    Nothing is approved if the champion is not the one that the approver saw. A rejection needs no
    comparison, so it is recorded even without the version's run.
    """
    late = Request(challenger, QUICK, answer=YES, answered_against="7")
    assert promote(late, tmp_path / "promotion")[0] is None
    assert (champion_version(), summaries("roses")[0].versions[0].decision) == ("1", None)
    equal = make_version("roses", tmp_path, wrong=range(60))
    for force in (None, "all the same"):
        refused = _decided(challenger, tmp_path, NO, force=force)
        assert (refused.promoted, refused.forced, refused.reason) == (False, False, NO.text)
    against_gates = _decided(equal, tmp_path, YES)
    assert not against_gates.promoted
    assert against_gates.reason.startswith("of 200 images")
    assert against_gates.reason.endswith("(although approved by Ada: looks good)")
    assert champion_version() == "1"
    run_id = str(client().get_model_version("roses", equal.version).run_id)
    shutil.rmtree(tmp_path / "mlruns" / client().get_run(run_id).info.experiment_id / run_id)
    with pytest.raises(ModelReferenceError):
        _decided(equal, tmp_path, YES)
    rejected = _decided(equal, tmp_path, NO)
    assert (rejected.promoted, rejected.reason) == (False, NO.text)
    promoted = _decided(challenger, tmp_path, YES)
    assert promoted.promoted
    [model] = summaries("roses")
    assert model.history[-1].reason.startswith("approved by Ada: looks good; better than version 1")


@pytest.mark.usefixtures("champion")
def test_the_question_has_metrics_gates_and_links(tmp_path: Path) -> None:
    """The text has what the approver needs, and the comparison is logged on the version's run.

    Without a champion it shows the version's own metrics.
    """
    metrics = {"accuracy": 0.7, "accuracy_low": 0.6, "accuracy_high": 0.8}
    worse = make_version("roses", tmp_path, wrong=range(100), metrics=metrics)
    question = prepare_question(worse, "1", QUICK, tmp_path / "20261121")
    assert [gate.name for gate in question.failed_gates] == [
        "better_than_champion",
        "no_class_worse",
    ]
    words = approval_question.page_text(question, 72)
    assert "2 of 3 gates fail: `better_than_champion`, `no_class_worse`" in words
    assert "| accuracy on 200 images in common | 70.0% (" in words
    assert "| correct only here | 40 images | 0 images |" in words
    assert "| Accuracy, own test images | 0.9 | 0.7 (0.6 to 0.8) |" in words
    assert "patchline approve roses/2" in words
    form = approval_question.form_text(question, 72)
    assert "Correct only now: 0; correct only before: 40." in form
    run_id = summaries("roses")[0].versions[0].run_id
    assert f"/runs/{run_id}/artifacts/approval/20261121/comparison.html?" in words
    stored = [item.path for item in client().list_artifacts(run_id, "approval/20261121")]
    assert "approval/20261121/comparison.html" in stored
    assert question == Question.model_validate_json(question.model_dump_json())
    client().delete_registered_model_alias("roses", CHAMPION)
    alone = prepare_question(resolve("roses/1"), None, QUICK, tmp_path / "x")
    words = approval_question.page_text(alone, 1)
    assert "There is no champion to compare with." in words
    assert "| Accuracy, own test images |  | 0.9 |" in words


def test_an_answer_is_one_line_of_plain_text() -> None:
    """What somebody pastes into the form cannot break the history."""
    answer = ApprovalAnswer(decision="reject", who="A\x1bda", reason="first\nsecond")
    assert answer.text == "rejected by A da: first second"
    assert ApprovalAnswer(decision="reject", who=NOBODY, reason="too late").text == "too late"
