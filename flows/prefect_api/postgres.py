"""The PostgreSQL database of a team: its address, its two schemas, and a lock for migrations.

MLflow and Prefect share one database, each in a schema of its own, so that one dump holds both as
they were at one moment. No address contains a password: MLflow's driver (libpq) and Prefect's
(asyncpg) both read the variables `PGPASSWORD` and `PGSSL...`, and the file `~/.pgpass`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from patchline.pipeline.errors import ConfigError, OrchestrationError, first_line
from patchline.pipeline.redaction import split_credentials, without_credentials

if TYPE_CHECKING:
    from asyncpg import Connection

MLFLOW_SCHEMA, PREFECT_SCHEMA = "mlflow", "prefect"
PASSWORD_VARIABLE = "PGPASSWORD"  # noqa: S105 - the name of a variable
_SCHEMES = ("postgresql", "postgres")
_PARAMETERS = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
"""Parameters of an address that both drivers read from a variable."""
_SUPPORTED = ("host", *_PARAMETERS)
_CONNECT_SECONDS = 10
_PREFECT_SECONDS = "60"
"""How long a connection, and a statement, of Prefect may take: a busy machine is no outage."""
_LOCK_KEY = 0x9A7C411E
"""Of the advisory lock for creating and migrating tables."""


@dataclass(frozen=True)
class Database:
    """The address of a database."""

    place: str
    """The database's place, as USER@HOST:PORT/NAME."""
    parameters: Mapping[str, str]
    """Parameters of the connection, such as `sslmode`; `host` is the folder of a socket."""
    password: str | None = field(default=None, repr=False)
    """The password in the address; None if it contained none."""

    @property
    def address(self) -> str:
        """What is shown and remembered: the address without the password."""
        return self._with("postgresql", self.parameters)

    @property
    def variables(self) -> dict[str, str]:
        """The parameters and the password as the variables that both drivers read."""
        names = _PARAMETERS.items()
        given = {name: self.parameters[key] for key, name in names if key in self.parameters}
        return given if self.password is None else {**given, PASSWORD_VARIABLE: self.password}

    def for_mlflow(self) -> str:
        """Return the address for MLflow's driver, whose tables are in a schema of their own."""
        schema = f"-csearch_path={MLFLOW_SCHEMA}"
        return self._with(
            "postgresql", {**self._socket, "options": schema, "connect_timeout": _CONNECT_SECONDS}
        )

    def for_prefect(self) -> dict[str, str]:
        """Return the variables of a Prefect server that uses the database."""
        prefix = "PREFECT_SERVER_DATABASE_"
        return {
            f"{prefix}CONNECTION_URL": self._with("postgresql+asyncpg", self._socket),
            f"{prefix}CONNECTION_TIMEOUT": _PREFECT_SECONDS,
            f"{prefix}TIMEOUT": _PREFECT_SECONDS,
            f"{prefix}SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": f"{PREFECT_SCHEMA},public",
        }

    @property
    def _socket(self) -> dict[str, str]:
        return {key: value for key, value in self.parameters.items() if key == "host"}

    def _with(self, scheme: str, parameters: Mapping[str, object]) -> str:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return f"{scheme}://{self.place}{query}"


def database(address: str, named_by: str = "--database") -> Database:
    """Return the database that a user's address names.

    Args:
        address: the address as the user gave it.
        named_by: what contained it, for errors.

    Raises:
        ConfigError: if it is not the address of a PostgreSQL database.
    """
    shown = without_credentials(address)
    try:
        parts = urlsplit(split_credentials(address).address)
        is_one = is_postgres(address) and parts.path.strip("/") and parts.port != 0
    except ValueError:  # the port is no number, for example
        is_one = False
    if not is_one:
        raise ConfigError(
            f"{named_by} {shown} is not the address of a PostgreSQL database. Write it as "
            "postgresql://USER@HOST:PORT/NAME."
        )
    named = _split(address)
    unknown = sorted(named.parameters.keys() - _SUPPORTED)
    if unknown:
        raise ConfigError(
            f"{named_by} {shown} has the parameter {unknown[0]}. Supported are "
            f"{', '.join(_SUPPORTED)}."
        )
    return named


def is_postgres(address: str) -> bool:
    """Return whether an address is that of a PostgreSQL database, with or without a driver."""
    return urlsplit(address).scheme.partition("+")[0] in _SCHEMES


def _split(address: str) -> Database:
    plain = split_credentials(address)
    parts = urlsplit(plain.address)
    user = f"{quote(plain.user, safe='')}@" if plain.user else ""
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Database(f"{user}{parts.netloc}{parts.path}", parameters, plain.password)


def prepare(of: Database) -> None:
    """Check that the database can be used, and create the two schemas in it.

    Raises:
        OrchestrationError: if a driver is missing, or the server does not answer or refuses.
    """
    if find_spec("psycopg2") is None:
        raise OrchestrationError(
            "PostgreSQL needs the package psycopg2, which is not installed. Run `pip install "
            "'patchline[postgres]'`."
        )
    try:
        asyncio.run(_create_schemas(of))
    except Exception as error:
        raise _unusable(of, error) from error


@contextmanager
def one_at_a_time(address: str) -> Iterator[None]:
    """Prevent other servers from creating or migrating tables while the block runs.

    Args:
        address: the database's address, with MLflow's or Prefect's driver; nothing happens for
            other kinds of databases.

    Raises:
        OrchestrationError: if the server does not answer or refuses.
    """
    if not is_postgres(address):
        yield
        return
    of = _split(address)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        try:
            connection = loop.run_until_complete(_lock(of))
        except Exception as error:
            raise _unusable(of, error) from error
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the server releases it with the connection
                loop.run_until_complete(connection.close(timeout=_CONNECT_SECONDS))


async def _create_schemas(of: Database) -> None:
    connection = await _lock(of)
    try:
        for schema in (MLFLOW_SCHEMA, PREFECT_SCHEMA):
            # An existing one needs no right to create it, unlike with IF NOT EXISTS.
            if not await connection.fetchval("SELECT to_regnamespace($1)::text", schema):
                await connection.execute(f"CREATE SCHEMA {schema}")
    finally:
        await connection.close(timeout=_CONNECT_SECONDS)


async def _lock(of: Database) -> Connection:
    """Return a connection that holds the lock until it is closed."""
    import asyncpg

    known = {key: value for key, value in of.parameters.items() if key in _PARAMETERS}
    address = Database(of.place, known).address
    connection = await asyncpg.connect(
        address,
        host=of.parameters.get("host"),
        port=urlsplit(address).port,
        password=of.password,
        timeout=_CONNECT_SECONDS,
    )
    await connection.execute(f"SELECT pg_advisory_lock({_LOCK_KEY})")
    return connection


def _unusable(of: Database, error: Exception) -> OrchestrationError:
    """Return the error for a server that does not answer or refuses."""
    parts = urlsplit(of.address)
    user, name = (f'"{unquote(each)}"' for each in (parts.username or "USER", parts.path[1:]))
    return OrchestrationError(
        f"The PostgreSQL database {of.address} cannot be used ({first_line(error)}). Start its "
        f"server, correct the address or {PASSWORD_VARIABLE}, or ask an administrator for `CREATE "
        f"ROLE {user} LOGIN PASSWORD '...'` and `CREATE DATABASE {name} OWNER {user}`."
    )
