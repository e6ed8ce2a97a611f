"""The server follows an alias, between two requests, and only to a package that is well."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.patience import until
from tests.pipeline.registry.serving.served import (
    NAME,
    Registry,
    Serving,
    png,
    serving,
    wait_for_version,
)

OTHERS = ("down", "falling", "up")
"""Classes of which one is new, instead of another one."""


def test_it_switches_under_load(own_registry: Registry) -> None:
    """Every answer under load is whole: that of the version which it names.

    `NAME/VERSION` is served whatever the alias does.
    """
    image, found = png(3), list[tuple[int, str, float]]()
    ended = threading.Event()

    def ask(server: Serving) -> None:
        while not ended.is_set():
            reply = server.predict(image)
            content = reply.json
            found.append((reply.status, content.get("version", ""), content.get("probability", 0)))

    with (
        serving(own_registry.folder) as server,
        serving(own_registry.folder, model=f"{NAME}/1") as fixed,
    ):
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            second = own_registry.add(2)
            wait_for_version(server, second)
            assert fixed.predict(image).json["version"] == fixed.ready["version"] == "1"
            own_registry.point("champion", "1")
            wait_for_version(server, "1")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert server.ask("GET", "/status").json["version"] == "1"
        assert fixed.ask("GET", "/status").json["alias"] is None
        assert b"patchline_model_switches_total 2.0" in server.ask("GET", "/metrics").body
    right = {
        version: own_registry.package(seed).answers([image], top_k=1)[0]["probability"]
        for version, seed in (("1", 1), (second, 2))
    }
    assert abs(right["1"] - right[second]) > 1e-4  # a mixed answer would be seen
    assert {version for _, version, _ in found} == set(right)
    for status, version, probability in found:
        assert status == 200
        assert probability == pytest.approx(right[version], abs=1e-6)


def test_a_package_that_fails_its_check_is_not_taken(own_registry: Registry) -> None:
    """It is named in the log and the metrics, and the old one answers.

    Its network may be damaged, may lack, or may not fit its description. Other classes are refused
    likewise, unless the server allows them.
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
            until(lambda: server.ask("GET", "/status").json["rejected"], "nothing was rejected")
            rejected = server.ask("GET", "/status").json["rejected"]
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
        own_registry.add(3, classes=OTHERS)
        until(lambda: server.ask("GET", "/status").json["rejected"], "nothing was rejected")
        reason = server.ask("GET", "/status").json["rejected"]["reason"]
        assert "(new: falling; gone: rising)" in reason
        assert server.predict(png(1)).json["version"] == "1"


def test_a_registry_that_is_gone_changes_nothing(own_registry: Registry) -> None:
    """Without its store, or without the alias, the server answers on, and says what it misses.

    It takes a version with other classes, as it allows them.
    """
    store = own_registry.folder / "mlflow.db"
    with serving(own_registry.folder, "--allow-new-classes") as server:
        away = store.with_suffix(".away")
        shutil.move(store, away)
        until(
            lambda: not server.ask("GET", "/status").json["registry"]["answers"],
            "the missing store was not noticed",
        )
        assert not server.ask("GET", "/status").json["registry"]["alias_missing"]
        assert "there is no such file" in server.log.read_text()
        store.write_bytes(b"no database at all" * 100)
        assert b"patchline_registry_up 0.0" in server.ask("GET", "/metrics").body
        assert server.predict(png(1)).json["version"] == "1"
        shutil.move(away, store)
        wait_for_version(server, own_registry.add(2, classes=OTHERS))
        assert server.ask("GET", "/status").json["registry"]["answers"]
        client().delete_registered_model_alias(NAME, "champion")
        until(
            lambda: server.ask("GET", "/status").json["registry"]["alias_missing"],
            "the missing alias was not noticed",
        )
