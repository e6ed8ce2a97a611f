"""A team's stores are tried before the servers start: real servers of PostgreSQL and of S3."""

from __future__ import annotations

import re
import sys
from uuid import uuid4

import pytest

from patchline.flows.command_line import run_command_line
from patchline.flows.prefect_api import postgres as database
from patchline.flows.services import store_choice
from patchline.pipeline.errors import ConfigError, OrchestrationError
from patchline.pipeline.redaction import redact_text
from tests.flows.services.buckets import check_keys_after, keys_in, new_user
from tests.free_ports import free_port
from tests.object_server import ObjectServer
from tests.postgres_server import PASSWORD, USER, PostgresServer


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def name(postgres: PostgresServer) -> str:
    """Return the name of an empty database that no other test uses."""
    name = f"base_{uuid4().hex}"
    postgres.sql(f"CREATE DATABASE {name} OWNER {USER}")
    return name


def prepare(address: str) -> None:
    """Prepare the database of an address."""
    database.prepare(database.database(address))


def failure(address: str) -> str:
    """Return the sentence with which a database or a bucket cannot be used."""
    with pytest.raises(OrchestrationError) as raised:
        (store_choice.check if address.startswith("s3:") else prepare)(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgres://anna:pw@[::1]:1/b%20c", "postgresql://anna@[::1]:1/b%20c"),
        ("postgresql://anna:p@/w?:@host/base", "postgresql://anna@host/base"),
        (
            "postgresql://anna@/base?host=/run/socket&sslmode=require",
            "postgresql://anna@/base?host=%2Frun%2Fsocket&sslmode=require",
        ),
    ],
)
def test_an_address_is_kept_without_its_password(address: str, shown: str) -> None:
    """It keeps everything else, and what is kept leads to the same database."""
    once = database.database(address)
    assert once.address == shown
    again = database.database(once.address)
    assert (again.place, again.parameters) == (once.place, once.parameters)
    assert "pw" not in repr(once)
    assert "p@/w" not in repr(once)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://anna@host", "not the address of a PostgreSQL database"),
        ("postgresql://anna@host:70000/base", "not the address of a PostgreSQL database"),
        ("postgresql://anna@[::1/base", "not the address of a PostgreSQL database"),
        ("postgresql://anna@host/base?target_session_attrs=any", "target_session_attrs"),
    ],
)
def test_a_wrong_address_is_refused_with_its_form(address: str, words: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(ConfigError, match=words):
        database.database(address)


def test_parameters_of_tls_become_variables_of_both_drivers() -> None:
    """Neither driver reads the names of the other."""
    named = database.database("postgresql://a@h/b?sslmode=verify-full&sslrootcert=/ca.pem")
    assert named.variables == {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/ca.pem"}
    assert "sslmode" not in f"{named.for_mlflow()} {named.for_prefect()}"


def test_a_database_gets_a_schema_for_each_program(postgres: PostgresServer, name: str) -> None:
    """The socket leads to the same database; who may create no schema can use existing ones."""
    socket = f"postgresql://{USER}@:{postgres.port}/{name}?host={postgres.folder}"
    for address in (postgres.address(name), socket):
        prepare(address)
    query = "SELECT nspname FROM pg_namespace WHERE nspname IN ('mlflow', 'prefect') ORDER BY 1"
    assert postgres.sql(query, name) == [("mlflow",), ("prefect",)]
    postgres.sql(f"CREATE ROLE guest_{name} LOGIN PASSWORD '{PASSWORD}'")
    prepare(postgres.address(name, f"guest_{name}"))


def test_a_missing_database_is_one_sentence_with_the_statements_that_create_it(
    postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """They work as they are; `up` starts nothing before."""
    address = postgres.address("of-anna", "anna")
    assert run_command_line(["up", "--database", address]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{postgres.port}/of-anna cannot be used (" in said
    for statement in re.findall(r"`(CREATE [^`]*)`", said):
        postgres.sql(statement.replace("'...'", f"'{PASSWORD}'"))
    prepare(address)


def test_what_the_server_refuses_is_said_with_its_own_reason(
    postgres: PostgresServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that is missing, a wrong password, a server that is not there, TLS."""
    postgres.sql(f"CREATE ROLE guest_{name} LOGIN PASSWORD '{PASSWORD}'")
    assert f"permission denied for database {name}" in failure(
        postgres.address(name, f"guest_{name}")
    )
    monkeypatch.setenv("PGPASSWORD", "wr0ng/one")
    said = failure(postgres.address(name))
    assert 'password authentication failed for user "team"' in said
    assert "wr0ng" not in said
    assert "wr0ng" not in redact_text("failed: wr0ng/one")
    assert "Connect call failed" in failure(f"postgresql://team@127.0.0.1:{free_port()}/{name}")
    assert "nowhere.invalid" in failure(f"postgresql://team@nowhere.invalid/{name}")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert "SSL" in failure(postgres.address(name))


def test_a_missing_driver_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the extra."""
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(OrchestrationError, match=r"pip install 'patchline\[postgres\]'"):
        prepare("postgresql://anna@host/base")


# -- a bucket for artifacts --------------------------------------------------------------------


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
    store_choice.check(f"s3://{bucket}/team/a b")
    assert keys_in(objects, bucket) == []  # what is written to try it is deleted
    check_keys_after(objects, 0)
    try:
        assert "does not accept the keys" in failure(f"s3://{bucket}")
        for name, value in writing.items():
            monkeypatch.setenv(name, value)
        store_choice.check(f"s3://{bucket}")
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
