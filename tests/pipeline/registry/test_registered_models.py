"""References, classes and summaries of the registry, in a real SQLite store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry.registered_models import (
    FINGERPRINT_TAG,
    ModelReference,
    check_classes,
    class_tags,
    resolve,
    summaries,
)
from patchline.pipeline.workspace.tracking.tracking_store import client

PETS = ("cat", "dog", "owl")


def _version(store: MlflowClient, name: str, classes: tuple[str, ...], accuracy: float) -> str:
    """Register a version the way a run does, but without files, and return its source."""
    experiment = store.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else store.create_experiment(name)
    run_id = store.create_run(experiment_id).info.run_id
    store.log_metric(run_id, "test/accuracy", accuracy)
    store.log_metric(run_id, "train/loss", 0.5)
    model = store.create_logged_model(experiment_id, name=name, source_run_id=run_id)
    source = f"models:/{model.model_id}"
    version = store.create_model_version(name, source, run_id).version
    for key, value in {**class_tags(classes), FINGERPRINT_TAG: f"data-{accuracy}"}.items():
        store.set_model_version_tag(name, version, key, value)
    return source


@pytest.fixture(scope="module")
def filled_store(
    empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[str]]:
    """Return a store with two models, and the sources of the versions of `pets`, oldest first.

    Tests must not change it.
    """
    file = shutil.copy(empty_store, tmp_path_factory.mktemp("store") / "mlflow.db")
    uri = f"sqlite:///{file}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        store = client()
        for name in ("flowers", "pets"):
            store.create_registered_model(name)
        sources = [_version(store, "pets", PETS, number / 20) for number in range(1, 12)]
        _version(store, "flowers", ("rose", "tulip"), accuracy=0.9)
        store.set_registered_model_alias("pets", "champion", "2")
        store.set_registered_model_alias("pets", "challenger", "11")
        store.set_registered_model_alias("pets", "old", "2")
    return uri, sources


@pytest.fixture(autouse=True)
def _use_filled_store(filled_store: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled_store[0])


@pytest.mark.parametrize(
    ("reference", "version"),
    [
        ("pets", "2"),
        ("pets@challenger", "11"),
        ("pets/10", "10"),
        ("models:/pets@challenger", "11"),
        ("models:/pets/3", "3"),
    ],
)
def test_a_reference_names_a_version(
    filled_store: tuple[str, list[str]], reference: str, version: str
) -> None:
    """A name, an alias, a number and MLflow's own form lead to the version and its files."""
    source = filled_store[1][int(version) - 1]
    assert resolve(reference) == ModelReference("pets", version, source)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (
            "pest",
            "There is no registered model 'pest'. Did you mean 'pets'? Registered models: flow",
        ),
        ("pets@champoin", "'pets' has no alias 'champoin'. Did you mean 'champion'?"),
        ("pets/12", "'pets' has no version 12. Its versions: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11."),
        ("flowers", "'flowers' has no alias 'champion'. It has no aliases."),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(reference: str, sentence: str) -> None:
    """An unknown model, alias or version is answered with what there is, nearest first."""
    with pytest.raises(ModelReferenceError) as caught:
        resolve(reference)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    "reference", ["", "pets@", "pets/x", "pets/1/2", "pets@a@b", "@champion", "a b", "runs:/1/x"]
)
def test_a_bad_form_is_answered_with_the_good_ones(reference: str) -> None:
    """What is no reference at all is answered with the forms that there are."""
    with pytest.raises(
        ModelReferenceError, match="Write NAME, NAME@ALIAS, NAME/VERSION or models:/"
    ):
        resolve(reference)
    with pytest.raises(ModelReferenceError, match="Write a version as pets/2, not pets@2"):
        resolve("pets@2")


@pytest.mark.usefixtures("own_store")
def test_a_model_without_versions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered model that has lost all versions is a sentence, not a crash."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    client().create_registered_model("empty")
    [summary] = summaries()
    assert summary.versions == ()
    for reference, what in (("empty", "aliases"), ("empty/1", "versions")):
        with pytest.raises(ModelReferenceError, match=rf"'empty' has no .* It has no {what}\."):
            resolve(reference)
    check_classes("empty", PETS)


def test_other_classes_are_refused() -> None:
    """A name whose newest version knows other classes is refused, and the difference is named.

    It may get another version with the same classes; a new name may have any.
    """
    check_classes("pets", PETS)
    check_classes("new", ("anything", "else"))
    with pytest.raises(ModelReferenceError, match="gives an image one label, but this"):
        check_classes("pets", PETS, "multi_label")
    with pytest.raises(ModelReferenceError, match=r"'pets' \(version 11\)") as caught:
        check_classes("pets", ("cat", "dog", "emu"))
    for words in ("only here: emu", "only there: owl", "--model.init pets/11"):
        assert words in str(caught.value)


def test_summaries_list_the_newest_version_first() -> None:
    """All models by name, versions by number from the newest, with aliases, figures and data."""
    flowers, pets = summaries()
    assert (flowers.name, pets.name) == ("flowers", "pets")
    assert [version.version for version in pets.versions] == [str(n) for n in range(11, 0, -1)]
    newest, second = pets.versions[0], pets.versions[9]
    assert newest.aliases == ("challenger",)
    assert second.aliases == ("champion", "old")
    assert pets.versions[1].aliases == ()
    assert newest.metrics == {"test/accuracy": 11 / 20}
    assert newest.data_fingerprint == "data-0.55"
    assert len({version.run_id for version in pets.versions}) == 11
    assert summaries("pets") == [pets]
    with pytest.raises(ModelReferenceError, match="Did you mean 'flowers'"):
        summaries("flower")
