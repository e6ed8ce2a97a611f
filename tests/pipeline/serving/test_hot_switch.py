"""The server follows an alias, between two requests, and only to a package that is well."""

from __future__ import annotations

import json
import shutil
import threading
import time

import numpy as np
import pytest

from tests.patience import until
from tests.pipeline.serving.served import NAME, Registry, Serving, png, serving, wait_for_version


def ask_in_threads(
    server: Serving, image: bytes, threads: int, ended: threading.Event
) -> tuple[list[threading.Thread], list[tuple[int, str, float]]]:
    """Ask all the time; return the threads, and the status, version and probability of answers."""
    found: list[tuple[int, str, float]] = []

    def ask() -> None:
        while not ended.is_set():
            reply = server.predict(image)
            content = reply.json
            found.append((reply.status, content.get("version", ""), content.get("probability", 0)))

    started = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in started:
        thread.start()
    return started, found


def test_it_switches_under_load(own_registry: Registry) -> None:
    """Every answer under load is whole: that of the version which it names."""
    image = png(3)
    versions = {"1": 1}
    with serving(own_registry.folder) as server:
        ended = threading.Event()
        threads, found = ask_in_threads(server, image, 2, ended)
        try:
            for seed in (2, 3):
                version = own_registry.add(seed)
                versions[version] = seed
                wait_for_version(server, version)
            own_registry.point("champion", "1")
            wait_for_version(server, "1")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        status = server.ask("GET", "/status").json
        assert status["version"] == "1"
        assert b"patchline_model_switches_total 3.0" in server.ask("GET", "/metrics").body
    assert {status for status, _, _ in found} == {200}
    assert {version for _, version, _ in found} == set(versions)
    for _, version, probability in found:
        package = own_registry.package(versions[version])
        right = package.answers([image], top_k=1)[0]["probability"]
        assert probability == pytest.approx(right, abs=1e-6)


def rejected_by(server: Serving) -> dict[str, str]:
    """Wait until a version is rejected; return which, and why."""
    until(lambda: server.ask("GET", "/status").json["rejected"], "nothing was rejected")
    rejected: dict[str, str] = server.ask("GET", "/status").json["rejected"]
    return rejected


def test_a_package_that_fails_its_check_is_not_taken(own_registry: Registry) -> None:
    """It is named in the log and the metrics, and the old one answers.

    Its network may be damaged, may lack, or may not fit its description.
    """
    with serving(own_registry.folder) as server:
        bad = own_registry.add(2, alias=None)
        artifacts = own_registry.folder / "packages" / "2" / "artifacts"
        content = json.loads((artifacts / "model.json").read_text())
        content["classes"] = content["classes"][:2]
        fewer = json.dumps(content)
        for damage, reason in (
            (lambda: (artifacts / "model.json").write_text(fewer), "2 classes"),
            (lambda: (artifacts / "model.onnx").write_bytes(b"damaged"), "damaged"),
            ((artifacts / "model.onnx").unlink, "lacks the file model.onnx"),
        ):
            damage()
            own_registry.point("champion", bad)
            rejected = rejected_by(server)
            assert rejected["version"] == bad
            assert reason in rejected["reason"]
            assert str(own_registry.folder) not in json.dumps(rejected)
            assert server.predict(png(1)).json["version"] == "1"
            metrics = server.ask("GET", "/metrics").body.decode()
            assert f'patchline_rejected_model_info{{name="{NAME}",version="{bad}"}} 1.0' in metrics
            assert f"Version {bad} of {NAME} is not taken" in server.log.read_text()
            own_registry.point("champion", "1")
            until(
                lambda: not server.ask("GET", "/status").json["rejected"],
                "the rejection was not forgotten",
            )
        assert server.ask("GET", "/readyz").status == 200


def test_a_fixed_version_stays(own_registry: Registry) -> None:
    """`NAME/VERSION` is served whatever the alias does."""
    second = own_registry.add(2)
    with serving(own_registry.folder, model=f"{NAME}/1") as server:
        assert server.ready["version"] == "1"
        assert server.ask("GET", "/status").json["alias"] is None
        own_registry.point("champion", second)
        time.sleep(3)
        assert server.predict(png(1)).json["version"] == "1"


def test_a_registry_that_is_gone_changes_nothing(own_registry: Registry) -> None:
    """Without its store, or without the alias, the server answers on, and says what it misses."""
    store = own_registry.folder / "mlflow.db"
    with serving(own_registry.folder) as server:
        away = store.with_suffix(".away")
        shutil.move(store, away)
        until(
            lambda: server.ask("GET", "/status").json["registry"]["alias_missing"],
            "the missing alias was not noticed",
        )
        store.write_bytes(b"no database at all" * 100)
        until(
            lambda: not server.ask("GET", "/status").json["registry"]["answers"],
            "the damaged store was not noticed",
        )
        assert b"patchline_registry_up 0.0" in server.ask("GET", "/metrics").body
        assert server.predict(png(1)).json["version"] == "1"
        shutil.move(away, store)
        second = own_registry.add(2)
        wait_for_version(server, second)
        assert server.ask("GET", "/status").json["registry"]["answers"]


def test_the_probabilities_of_versions_differ(own_registry: Registry) -> None:
    """Versions of these tests have different answers, so that a mixed one would be seen."""
    image = png(3)
    for seed in (2, 3, 4):
        own_registry.add(seed, alias=None)
    packages = [own_registry.package(seed) for seed in (1, 2, 3, 4)]
    values = [package.answers([image], 1)[0]["probability"] for package in packages]
    assert len(np.unique(np.round(values, 4))) == 4
