"""A version becomes champion if it passes the gates, and only then."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.models.provenance import Provenance, Published
from patchline.pipeline.registry import gate_evaluation, registration
from patchline.pipeline.registry import promotion as promotion_module
from patchline.pipeline.registry.aliases import CHAMPION
from patchline.pipeline.registry.config import GateConfig, PromotionConfig
from patchline.pipeline.registry.gate_settings import gates_for
from patchline.pipeline.registry.promotion import (
    Promotion,
    Request,
    assign_aliases,
    promote,
    rollback,
)
from patchline.pipeline.registry.registered_models import ModelReference, resolve, summaries
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.registry.made_versions import (
    CLASSES,
    QUICK,
    champion_version,
    digest,
    made_manifest,
    make_version,
    promoted,
    seen_in,
)

pytestmark = pytest.mark.usefixtures("own_store")


def _decision(reference: ModelReference, folder: Path, config: PromotionConfig) -> Promotion:
    decision, _ = promote(Request(reference, config), folder / "promotion")
    assert decision is not None
    return decision


def test_a_better_version_is_promoted_and_a_hardly_better_one_is_not(
    challenger: ModelReference, tmp_path: Path
) -> None:
    """Fewer errors on the same images promote; one image more does not.

    A script that runs twice changes nothing the second time.
    """
    hardly = make_version("roses", tmp_path, wrong=range(1, 60))
    assert not promoted(hardly, tmp_path)
    assert champion_version() == "1"
    decision = _decision(challenger, tmp_path, QUICK)
    assert (decision.promoted, decision.champion, champion_version()) == (True, "1", "2")
    gate, *_ = decision.gates
    assert gate.value == pytest.approx(60 / 200)
    assert "60 are correct only now and 0 were correct only before" in gate.sentence
    before = summaries("roses")[0].history
    again, entry = promote(Request(challenger, QUICK), tmp_path / "promotion")
    assert again is not None
    assert (again.promoted, entry, "already" in again.reason) == (True, None, True)
    assert summaries("roses")[0].history == before


@pytest.mark.usefixtures("champion")
def test_a_decision_is_logged_with_its_comparison(tmp_path: Path) -> None:
    """Comparison and decision are logged on the run, and the version records the outcome.

    Force overrules the gates; the history records why, and which gates failed.
    """
    worse = make_version("roses", tmp_path, wrong=range(100))
    decision = _decision(worse, tmp_path, QUICK)
    assert decision.failed == ("better_than_champion", "no_class_worse")
    [model] = summaries("roses")
    newest = model.versions[0]
    assert newest.decision is not None
    assert newest.decision["promoted"] is False
    run_id = newest.run_id
    [place] = [item.path for item in client().list_artifacts(run_id, "promotion")]
    files = {Path(item.path).name for item in client().list_artifacts(run_id, place)}
    assert files == {"comparison.html", "comparison.json", "decision.json"}
    request = Request(worse, QUICK, force_reason="the old one has a bug")
    forced, entry = promote(request, tmp_path / "promotion")
    assert forced is not None
    assert entry is not None
    assert (forced.promoted, forced.forced, champion_version()) == (True, True, "2")
    assert (entry.action, entry.gates) == ("forced", newest.decision["gates"])
    assert "the old one has a bug" in entry.reason
    assert entry.gates == {
        "better_than_champion": False,
        "no_class_worse": False,
        "provenance": True,
    }


def test_only_images_unseen_by_both_versions_are_compared(tmp_path: Path) -> None:
    """With different data, the challenger's test images count unless the champion has seen them."""
    old = made_manifest(test=range(200), train=range(1000, 1100))
    grown = made_manifest(test=range(100, 300), train=range(2000, 2100))
    known = grown[grown["sha256"].isin([digest(number) for number in range(100, 150)])].index
    old_with_known = old.copy()
    now_train = old_with_known["sha256"].isin(grown.loc[known, "sha256"])
    old_with_known.loc[now_train, "split"] = "train"
    make_version("roses", tmp_path, wrong=range(150, 200), manifest=old_with_known)
    challenger = make_version("roses", tmp_path, manifest=grown)
    decision = _decision(challenger, tmp_path, QUICK)
    better, *_ = decision.gates
    # 50 images were trained on by the champion, 100 are new and their files are not there.
    assert "of 50 images" in better.sentence
    assert decision.promoted


def test_images_without_a_checked_record_are_predicted_by_the_package(tmp_path: Path) -> None:
    """An image without a prediction that was compared with the package's is read, if unchanged."""
    root = tmp_path / "photos"
    manifest = made_manifest(test=range(60))
    for position, row in manifest[manifest["split"] == "test"].iterrows():
        file = root / row["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        shade = np.full((8, 8, 3), 4 * int(str(position)), dtype=np.uint8)
        Image.fromarray(shade).save(file)
        manifest.loc[int(str(position)), "sha256"] = digest_of(file).sha256
    (root / CLASSES[0] / "0.png").write_bytes(b"something else by now")
    make_version("roses", tmp_path, manifest=manifest, root=root, compared=False)
    challenger = make_version("roses", tmp_path, manifest=manifest, root=root)
    config = QUICK.model_copy(update={"min_images": 59, "max_class_drop": None})
    decision = _decision(challenger, tmp_path, config)
    assert "of 59 images" in decision.gates[0].sentence
    assert decision.promoted


def test_images_that_were_chosen_to_be_labelled_promote_nothing(tmp_path: Path) -> None:
    """A gain on the images that help most is none in the inbox, and the gates say so."""
    manifest = made_manifest()
    reasons = ["random" if number < 40 else "uncertain" for number in range(len(manifest))]
    manifest["column:patchline_label_source"] = reasons
    make_version("roses", tmp_path, wrong=range(40, 120), manifest=manifest)
    metrics = {"accuracy": 0.9}
    challenger = make_version("roses", tmp_path, manifest=manifest, metrics=metrics)
    few = _decision(challenger, tmp_path, QUICK.model_copy(update={"min_images": 41}))
    assert "only 40 images were not used" in few.reason
    assert "fewer than promotion.min_images 41" in few.reason
    assert "; 160 more were not drawn at random to be labelled, but chosen; add" in few.reason
    limits = QUICK.model_copy(update={"minimum": {"accuracy": 0.0}, "max_class_drop": None})
    decision = _decision(challenger, tmp_path, limits)
    assert decision.failed == ("better_than_champion",)
    assert decision.reason.startswith("of 40 images not used for training")
    [limit] = [gate for gate in decision.gates if gate.name == "minimum_accuracy"]
    assert "note that 160 of the 200 test images were not drawn at random" in limit.sentence


def test_images_of_one_patient_are_one_observation(tmp_path: Path) -> None:
    """20 frames of one patient that flip together promote nothing, and everything says why."""
    manifest = made_manifest()
    tests = manifest["split"] == "test"
    manifest.loc[tests, "group"] = [f"patient {number // 20}" for number in range(tests.sum())]
    make_version("roses", tmp_path, wrong=range(20), manifest=manifest)
    challenger = make_version("roses", tmp_path, manifest=manifest)
    few = _decision(challenger, tmp_path, QUICK.model_copy(update={"min_images": 11}))
    assert few.reason.startswith("only 10 groups of images (200 images) were not used for training")
    assert "fewer than promotion.min_images 11, for which a group counts once" in few.reason
    decision = _decision(challenger, tmp_path, QUICK)
    assert decision.failed == ("better_than_champion",)
    assert decision.reason.startswith("of 200 images in 10 groups not used for training")
    assert "p = 1.000, testing whole groups; required: a gain" in decision.reason
    assert "no class has 20 groups of comparable images" in decision.gates[1].sentence
    page = (tmp_path / "promotion" / "comparison.html").read_text("utf-8")
    assert "Exact test of whole groups" in page


@pytest.mark.usefixtures("champion")
def test_a_class_that_loses_too_much_refuses(tmp_path: Path) -> None:
    """The same overall accuracy does not make up for a large loss in one class."""
    worse = make_version("roses", tmp_path, wrong=range(0, 180, 3))  # of the first class alone
    decision = _decision(worse, tmp_path, QUICK.model_copy(update={"significance": 1.0}))
    assert decision.failed == ("no_class_worse",)
    assert f"'{CLASSES[0]}' has the largest loss" in decision.reason


def test_limits_on_its_own_metrics(registered: ModelReference, tmp_path: Path) -> None:
    """A first version becomes champion only within the limits; a missing metric fails."""

    def ask(**settings: object) -> str | None:
        config = PromotionConfig.model_validate({**QUICK.model_dump(), **settings})
        assign_aliases(registered, config, tmp_path / "aliases")
        return champion_version()

    assert ask(minimum={"accuracy": 0.91}) is None
    assert ask(maximum={"log_loss": 0.1}) is None
    assert ask(maximum={"ece": 0.01}) is None
    assert ask(minimum={"top5_accuracy": 0.1}) is None
    assert ask(minimum={"accuracy": 0.8}, maximum={"log_loss": 0.3, "ece": 0.05}) == "1"


UNKNOWN = Provenance.without_record("x.pth is a file of unrecognised origin")
UPSTREAM = Provenance(published=(Published(name="timm:vit_small", sha256="0" * 64),))


def test_unknown_images_refuse_until_a_person_overrules(tmp_path: Path) -> None:
    """Neither a first version nor a better one becomes champion; the history has the reason."""
    first = make_version("roses", tmp_path, wrong=range(60), provenance=UNKNOWN)
    assert champion_version() is None
    refused = _decision(first, tmp_path, QUICK)
    assert refused.failed == ("provenance",)
    assert "version 1 (x.pth is a file of unrecognised origin)" in refused.reason
    assert refused.provenance.state == "unknown"
    forced, entry = promote(Request(first, QUICK, "trained by me"), tmp_path / "promotion")
    assert forced is not None
    assert entry is not None
    assert forced.forced
    assert "forced despite failing provenance: trained by me" in entry.reason
    better = make_version("roses", tmp_path, provenance=UNKNOWN)
    decision = _decision(better, tmp_path, QUICK)
    assert decision.failed == ("provenance",)
    assert champion_version() == "1"


@pytest.mark.parametrize(
    ("champion", "challenger", "words"),
    [
        (UNKNOWN, None, "select champion roses/1 (x.pth"),
        (None, UPSTREAM, "published weights behind challenger roses/2"),
    ],
)
def test_a_comparison_does_not_claim_what_is_not_known(
    tmp_path: Path, champion: Provenance | None, challenger: Provenance | None, words: str
) -> None:
    """A champion that may have seen the images only looks better than it is, so it does not fail.

    Published weights do not refuse either. Both are said, and no image is called unused.
    """
    made = made_manifest()
    known = seen_in(made)
    of_champion, of_challenger = (
        known.from_initial(initial) if initial else None for initial in (champion, challenger)
    )
    first = make_version("roses", tmp_path, wrong=range(60), provenance=of_champion)
    promote(Request(first, QUICK, "the first"), tmp_path / "promotion")
    second = make_version("roses", tmp_path, provenance=of_challenger)
    decision = _decision(second, tmp_path, QUICK)
    assert decision.promoted
    assert words in decision.reason
    assert "not recorded as used for training or model selection by either" in decision.reason
    page = (tmp_path / "promotion" / "comparison.html").read_text("utf-8")
    assert "not used for training" not in page
    assert "its accuracy is optimistic" in page


@pytest.mark.usefixtures("challenger")
def test_automatic_promotion_is_a_setting(tmp_path: Path) -> None:
    """By default a better version waits for approval; with `automatic` it does not.

    Only the first champion needs no request: once its alias is removed, a run leaves it alone.
    """
    assert champion_version() == "1"
    automatic = QUICK.model_copy(update={"automatic": True})
    make_version("roses", tmp_path, wrong=range(20), config=automatic)
    assert champion_version() == "3"
    client().delete_registered_model_alias("roses", CHAMPION)
    notes: list[str] = []
    assert assign_aliases(resolve("roses/2"), QUICK, tmp_path / "again", notes.append) is None
    assert champion_version() is None
    assert "'roses' had a champion before" in notes[-1]


@pytest.mark.usefixtures("champion")
def test_versions_with_other_classes_are_neither_registered_nor_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two first runs of one name may both have begun when there was no version to compare with."""
    classes = CLASSES[:2]
    with pytest.raises(ModelReferenceError, match="has other classes than this data"):
        make_version("roses", tmp_path, classes=classes)
    assert [each.version for each in summaries("roses")[0].versions] == ["1"]
    monkeypatch.setattr(registration, "check_classes", lambda *_: None)
    second = make_version("roses", tmp_path, classes=classes)
    with pytest.raises(ModelReferenceError, match="only roses/1 has up"):
        promote(Request(second, QUICK), tmp_path / "promotion")


def test_a_package_that_does_not_load_is_refused(
    challenger: ModelReference, tmp_path: Path
) -> None:
    """A damaged package does not load in a clean process, so its version is refused."""
    config = QUICK.model_copy(update={"package_check": True, "max_latency_ms": 10_000.0})
    decision = _decision(challenger, tmp_path, config)
    assert decision.promoted, decision.reason
    assert [gate.name for gate in decision.gates][2:] == ["package", "latency", "provenance"]
    first = resolve("roses/1")
    server = _package(first) / "python_model.py"
    files = [server] if server.exists() else list(_package(first).glob("*.py"))
    for file in files:
        file.write_text("raise RuntimeError('rotten')\n", "utf-8")
    with pytest.raises(ModelReferenceError, match="rotten"):
        rollback("roses", None)
    assert champion_version() == "2"


def test_a_damaged_package_is_not_promoted(challenger: ModelReference, tmp_path: Path) -> None:
    """Each file of a package is checked, also those that prediction does not need."""
    file = _package(challenger) / "artifacts" / "model.safetensors"
    config = QUICK.model_copy(update={"package_check": True})
    for damage, words in (
        (lambda: file.write_bytes(b"cut"), "damaged"),
        (file.unlink, "lacks|miss"),
    ):
        damage()
        try:
            reason = _decision(challenger, tmp_path, config).reason
        except ModelReferenceError as error:
            reason = str(error)
        assert re.search(words, reason)
    assert champion_version() == "1"


def test_a_version_without_records_cannot_be_compared(
    challenger: ModelReference, tmp_path: Path
) -> None:
    """If its run was deleted, its test images are unknown, which is an error.

    Neither does a promotion touch an alias when the package is gone.
    """
    request, package = Request(challenger, QUICK), _package(challenger)
    away = package.rename(tmp_path / "away")
    with pytest.raises(ModelReferenceError, match="version 2 are gone"):
        promote(request, tmp_path / "promotion")
    away.rename(package)
    run = client().get_run(summaries("roses")[0].versions[0].run_id)
    shutil.rmtree(run.info.artifact_uri.removeprefix("file://"))
    with pytest.raises(ModelReferenceError, match="version 2 is no longer recorded"):
        promote(request, tmp_path / "promotion")
    assert champion_version() == "1"


def test_the_comparison_is_repeated_if_the_champion_changes_meanwhile(
    challenger: ModelReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another machine is faster, the version is compared with the new champion."""
    late = make_version("roses", tmp_path, wrong=range(30))
    evaluate_gates, rivals = gate_evaluation.evaluate_gates, [challenger.version]

    def evaluate_slowly(*values: object, **named: object) -> object:
        evaluation = evaluate_gates(*values, **named)  # type: ignore[arg-type]  # passed on as they are
        if rivals:  # while we were looking, another machine promotes its version
            client().set_registered_model_alias("roses", CHAMPION, rivals.pop())
        return evaluation

    monkeypatch.setattr(promotion_module, "evaluate_gates", evaluate_slowly)
    notes: list[str] = []
    decision, entry = promote(Request(late, QUICK), tmp_path / "promotion", notes.append)
    assert decision is not None
    assert (decision.promoted, decision.champion, entry) == (False, challenger.version, None)
    assert "the champion changed; comparing again" in notes
    assert champion_version() == challenger.version


def test_a_limit_in_a_flag_leaves_the_other_limits_as_they_are(tmp_path: Path) -> None:
    """Those of the run, or of the file that replaces them; the same metric takes the flag's."""
    recorded = {"minimum": {"macro_f1": 0.8}, "maximum": {"log_loss": 0.5}}
    given = {"minimum": {"accuracy": 0.9}, "maximum": {"ece": 0.1}}
    config = QUICK.model_copy(update=recorded)
    reference = make_version("roses", tmp_path, config=config)
    file = tmp_path / "gates.yaml"
    file.write_text(yaml.safe_dump({"promotion": recorded}), "utf-8")
    for source in (None, file):
        gates = gates_for(reference, source, GateConfig.model_validate(given))
        assert gates.minimum == {"macro_f1": 0.8, "accuracy": 0.9}
        assert gates.maximum == {"log_loss": 0.5, "ece": 0.1}
        assert gates.package_check == (source is not None)
        stricter = GateConfig.model_validate({"minimum": {"macro_f1": 0.85}})
        assert gates_for(reference, source, stricter).minimum == {"macro_f1": 0.85}
    assert gates_for(reference, None, None) == config


def _package(reference: ModelReference) -> Path:
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(reference.source))
