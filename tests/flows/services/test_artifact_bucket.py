"""A bucket for artifacts on a real S3 server is tried before the servers start."""

from __future__ import annotations

import sys

import pytest

from patchline.flows.services import artifact_bucket
from patchline.pipeline.errors import OrchestrationError
from tests.flows.services.buckets import check_keys_after, keys_in, new_user
from tests.object_server import ObjectServer
from tests.postgres_server import free_port


def failure(place: str) -> str:
    """Return the sentence with which a place cannot be used."""
    with pytest.raises(OrchestrationError) as raised:
        artifact_bucket.check(place)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_not_there_is_said_with_what_names_it(
    objects: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket, and a server, for which there are three variables; MLflow's precedes the others."""
    assert f"bucket nowhere does not exist at {objects.url}" in failure("s3://nowhere/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    assert "does not answer" in (said := failure(f"s3://{bucket}"))
    assert said.endswith("correct AWS_ENDPOINT_URL.")
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    assert failure(f"s3://{bucket}").endswith("correct MLFLOW_S3_ENDPOINT_URL.")


def test_wrong_keys_and_keys_that_may_only_read_are_told_apart(
    objects: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first are unknown to the server, the second lack a right."""
    reading, writing = new_user(objects, "s3:Get*", "s3:List*"), new_user(objects, "s3:*")
    artifact_bucket.check(f"s3://{bucket}/team/a b")
    assert keys_in(objects, bucket) == []  # what is written to try it is deleted
    check_keys_after(objects, 0)
    try:
        assert "does not accept the keys" in failure(f"s3://{bucket}")
        for name, value in writing.items():
            monkeypatch.setenv(name, value)
        artifact_bucket.check(f"s3://{bucket}")
        for name, value in reading.items():
            monkeypatch.setenv(name, value)
        assert f"may not write to s3://{bucket}" in failure(f"s3://{bucket}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        said = failure(f"s3://{bucket}")
        assert "does not accept the keys" in said
        assert reading["AWS_SECRET_ACCESS_KEY"] not in said
    finally:
        check_keys_after(objects, 10**9)


def test_missing_keys_and_a_missing_package_are_said(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names the variables, or the command that installs the extra."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in failure(f"s3://{bucket}")
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert "pip install 'patchline[s3]'" in failure("s3://bucket")
