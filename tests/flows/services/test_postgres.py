"""A team's database on a real PostgreSQL server: addresses, what is created, and what fails."""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
from collections.abc import Iterator

import pytest

from patchline.flows.services import postgres as database
from patchline.pipeline.errors import ConfigError, OrchestrationError
from patchline.pipeline.redaction import redacted
from tests.postgres_server import PASSWORD, USER, PostgresServer, free_port

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def name() -> str:
    """Return the name of a database that no other test uses."""
    return f"base_{next(_numbers)}"


def prepared(address: str) -> tuple[database.Connections, list[str]]:
    """Prepare the database of an address."""
    return database.prepare(database.database(address))


def failure(address: str) -> str:
    """Return the sentence with which a database cannot be prepared."""
    with pytest.raises(OrchestrationError) as raised:
        prepared(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://anna@host/base", "postgresql://anna@host:5432/base"),
        ("postgres://anna:pw@host:1/base", "postgresql://anna@host:1/base"),
        ("postgresql+psycopg2://anna@[::1]:9/b%20c", "postgresql://anna@[::1]:9/b%20c"),
        ("postgresql://anna:p@/w?:@host/base", "postgresql://anna@host:5432/base"),
        (
            "postgresql://anna@/base?host=/run/socket&sslmode=require",
            "postgresql://anna@:5432/base?host=%2Frun%2Fsocket&sslmode=require",
        ),
    ],
)
def test_an_address_is_kept_without_its_password(address: str, shown: str) -> None:
    """It keeps everything else, and what is kept leads to the same database."""
    once = database.database(address)
    assert once.address == shown
    again = database.database(once.address)
    assert (again.host, again.port, again.name) == (once.host, once.port, once.name)
    assert again.parameters == once.parameters
    assert "pw" not in repr(once)
    assert "p@/w" not in repr(once)


def test_the_user_of_an_address_is_by_default_the_one_that_libpq_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is PGUSER."""
    monkeypatch.setenv("PGUSER", "berta")
    assert database.database("postgresql://host/base").user == "berta"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("mysql://anna@host/base", "not the address of a PostgreSQL database"),
        ("sqlite:///a.db", "not the address of a PostgreSQL database"),
        ("host/base", "not the address of a PostgreSQL database"),
        ("postgresql://anna@host", "names no database"),
        ("postgresql://anna@/base", "names no host"),
        ("postgresql://anna@host:70000/base", "port"),
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
    assert "sslmode" not in named.for_mlflow() + named.for_prefect()


def test_a_missing_database_is_created_with_a_schema_for_each_program(
    postgres: PostgresServer, name: str
) -> None:
    """Each is said once; the second time there is nothing to create."""
    connections, created = prepared(postgres.address(name))
    assert [line.split()[:3] for line in created] == [
        ["Created", "the", "database"],
        ["Created", "the", "schema"],
        ["Created", "the", "schema"],
    ]
    assert connections == database.Connections(mlflow=16, prefect=24)
    assert prepared(postgres.address(name)) == (connections, [])


def test_a_wrong_and_a_missing_password_are_told_apart(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy names where it is read."""
    monkeypatch.setenv("PGPASSWORD", "wr0ng/one")
    assert "refused the password of team. Correct PGPASSWORD" in failure(postgres.address())
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    assert "requires a password for team. Set PGPASSWORD" in failure(postgres.address())


def test_a_server_that_cannot_be_reached_is_said_with_the_reason(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens, no such host, no TLS."""
    away = failure(f"postgresql://team@127.0.0.1:{free_port()}/base")
    assert "does not answer. Start it, or correct --database." in away
    assert "there is no such host" in failure("postgresql://team@nowhere.invalid/base")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert "SSL" in failure(postgres.address())


def test_who_may_not_create_a_database_is_told_what_to_ask_for(
    postgres: PostgresServer, name: str
) -> None:
    """The statement can be given to an administrator as it is."""
    postgres.sql(f"CREATE ROLE guest_{name} LOGIN PASSWORD '{PASSWORD}'")
    said = failure(postgres.address(name, f"guest_{name}"))
    assert f'`CREATE DATABASE "{name}" OWNER "guest_{name}"`' in said
    postgres.sql(f'CREATE DATABASE "{name}" OWNER "guest_{name}"')
    prepared(postgres.address(name, f"guest_{name}"))


def test_who_may_not_create_a_schema_is_told_what_to_ask_for(
    postgres: PostgresServer, name: str
) -> None:
    """The same in a database of somebody else, and with a schema of somebody else."""
    guest = f"guest_{name}"
    postgres.sql(f"CREATE ROLE {guest} LOGIN PASSWORD '{PASSWORD}'")
    postgres.sql(f"CREATE DATABASE {name}")
    assert f"GRANT CREATE ON DATABASE {name} TO {guest}" in failure(postgres.address(name, guest))
    postgres.sql("CREATE SCHEMA mlflow", name)
    assert f'ALTER SCHEMA mlflow OWNER TO "{guest}"' in failure(postgres.address(name, guest))


def test_a_read_only_database_is_said(postgres: PostgresServer, name: str) -> None:
    """As that of a standby server."""
    postgres.sql(f"CREATE DATABASE {name} OWNER {USER}")
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "is read-only" in failure(postgres.address(name))


def test_too_few_connections_are_said_with_their_number(
    postgres: PostgresServer, name: str
) -> None:
    """A limit of the user counts like one of the server."""
    postgres.sql(f"CREATE ROLE few_{name} LOGIN CONNECTION LIMIT 10 PASSWORD '{PASSWORD}'")
    postgres.sql(f"CREATE DATABASE {name} OWNER few_{name}")
    said = failure(postgres.address(name, f"few_{name}"))
    assert "allows 10 connections" in said
    assert "need 19" in said
    postgres.sql(f"ALTER ROLE few_{name} CONNECTION LIMIT 0")
    assert "has no free connection" in failure(postgres.address(name, f"few_{name}"))


def test_what_other_servers_may_still_open_is_not_taken_from_them(
    postgres: PostgresServer, name: str
) -> None:
    """A server is counted by its limit, which its name says, even if most of it is idle."""
    address = postgres.address(name)
    before, _ = prepared(address)
    with _opened(postgres, name, database.application_name("mlflow", 60)):
        after, _ = prepared(address)
    with _opened(postgres, name, "psql"):
        beside_one, _ = prepared(address)
    assert before.total == beside_one.total == 56
    assert 16 <= after.total <= 97 - 3 - 60


@contextlib.contextmanager
def _opened(postgres: PostgresServer, name: str, application: str) -> Iterator[None]:
    import psycopg2

    address = database.database(postgres.address(name)).for_mlflow()
    opened = psycopg2.connect(address, application_name=application)
    with contextlib.closing(opened):
        yield


@pytest.mark.parametrize("free", range(10, 70))
def test_pools_take_no_more_than_is_free(free: int) -> None:
    """Each gets enough for two requests at a time, or there are none at all."""
    pools = database.divided(free)
    if free < 16:
        assert pools is None
    else:
        assert pools is not None
        assert pools.total <= free
        assert pools.mlflow >= 4
        assert pools.prefect >= 8


def test_a_name_of_a_server_fits_into_what_postgresql_keeps() -> None:
    """It keeps 63 bytes."""
    assert len(database.application_name("prefect", 100)) <= 63


def test_an_untrusted_certificate_is_not_taken_for_a_dead_server(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy is about certificates."""

    async def untrusted(*_: object) -> None:
        raise ssl.SSLCertVerificationError(1, "certificate verify failed")

    monkeypatch.setattr(database, "_connected", untrusted)
    assert "Correct sslmode or sslrootcert" in failure(postgres.address())


def test_a_missing_driver_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "psycopg2", None)
    with pytest.raises(OrchestrationError, match=r"pip install 'patchline\[postgres\]'"):
        database.check_drivers()


def test_the_password_in_the_environment_is_hidden_in_every_text() -> None:
    """PGPASSWORD counts as a secret."""
    assert PASSWORD not in redacted(f"connection to server failed: {PASSWORD}")
    assert os.environ["PGPASSWORD"] == PASSWORD
