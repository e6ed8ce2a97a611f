"""The PostgreSQL database of a team: its address, what it lacks, and how many connections are left.

MLflow and Prefect share one database, each in a schema of its own, so that one dump holds both as
they were at one moment. No address contains a password: MLflow's driver (libpq) and Prefect's
(asyncpg) both read the variables `PGPASSWORD` and `PGSSL...`, and the file `~/.pgpass`.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from patchline.pipeline.errors import ConfigError, OrchestrationError, PipelineError
from patchline.pipeline.redaction import split_credentials, without_credentials

if TYPE_CHECKING:
    from asyncpg import Connection

MLFLOW_SCHEMA, PREFECT_SCHEMA = "mlflow", "prefect"
PASSWORD_VARIABLE = "PGPASSWORD"  # noqa: S105 - the name of a variable
_FORM = "postgresql://HOST:PORT/DATABASE, with the user before an @ or in PGUSER"
_SCHEMES = ("postgresql", "postgres")
_PARAMETERS = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
"""Parameters of an address that both drivers read from a variable."""
_PORT = 5432
_CONNECT_SECONDS = 10.0
_STATEMENT_SECONDS = "60"
"""How long a statement of Prefect may take."""
_OLDEST = 13
"""The first version in which who owns a database may create the extension that Prefect needs."""
_LOCK_KEY = 0x9A7C411E
"""Of the advisory lock for creating and migrating tables."""
_SPARE = 3
"""Connections that are left for people and backups."""
_SHARES_OF_7 = 2
"""Of seven connections, each of MLflow's two pools gets two, and Prefect the rest."""
_FEWEST, _MOST = 16, 56
_APPLICATION = "patchline"


@dataclass(frozen=True)
class Database:
    """The address of a database."""

    user: str
    host: str
    """A name or an address; or the folder of a socket."""
    port: int
    name: str
    parameters: Mapping[str, str]
    """Of the connection, such as `sslmode`."""
    password: str | None = field(default=None, repr=False)
    """Only if the address contained one."""

    @property
    def address(self) -> str:
        """What is shown and remembered: the address without the password."""
        return self._with("postgresql", self.parameters)

    @property
    def variables(self) -> dict[str, str]:
        """The parameters and the password as the variables that both drivers read."""
        given = {_PARAMETERS[key]: value for key, value in self.parameters.items()}
        return given if self.password is None else {**given, PASSWORD_VARIABLE: self.password}

    def for_mlflow(self) -> str:
        """Return the address for MLflow's driver, whose tables are in a schema of their own."""
        options = {
            "options": f"-csearch_path={MLFLOW_SCHEMA}",
            "connect_timeout": str(int(_CONNECT_SECONDS)),
        }
        return self._with("postgresql", options)

    def for_prefect(self) -> str:
        """Return the address for Prefect's driver; the schema is another of its settings."""
        return self._with("postgresql+asyncpg", {})

    def _with(self, scheme: str, options: Mapping[str, str]) -> str:
        is_socket = self.host.startswith("/")
        host = "" if is_socket else f"[{self.host}]" if ":" in self.host else self.host
        given = {**({"host": self.host} if is_socket else {}), **options}
        query = f"?{urlencode(given)}" if given else ""
        user, name = (quote(each, safe="") for each in (self.user, self.name))
        return f"{scheme}://{user}@{host}:{self.port}/{name}{query}"


@dataclass(frozen=True)
class Connections:
    """How many connections each pool of the servers may open."""

    mlflow: int
    """Of each of its two pools: one of the runs, one of the registered models."""
    prefect: int

    @property
    def total(self) -> int:
        """Of all pools."""
        return 2 * self.mlflow + self.prefect


def database(address: str, named_by: str = "--database") -> Database:
    """Return the database that a user's address names.

    Args:
        address: as the user gave it.
        named_by: what contained it, for errors.

    Raises:
        ConfigError: if it is not the address of a PostgreSQL database.
    """
    shown = without_credentials(address)
    if not is_postgres(address):
        raise ConfigError(
            f"{named_by} {shown} is not the address of a PostgreSQL database. Write it as {_FORM}."
        )
    try:
        named = _split(address)
    except ValueError as error:
        raise ConfigError(
            f"The port of {named_by} {shown} is not a number from 1 to 65535. Write the address "
            f"as {_FORM}."
        ) from error
    unknown = sorted(named.parameters.keys() - _PARAMETERS.keys())
    if unknown:
        raise ConfigError(
            f"{named_by} {shown} has the parameter {unknown[0]}. Supported are host, "
            f"{', '.join(_PARAMETERS)}."
        )
    missing = [
        what for what, value in (("host", named.host), ("database", named.name)) if not value
    ]
    if missing:
        raise ConfigError(
            f"{named_by} {shown} names no {missing[0]}. Write the address as {_FORM}."
        )
    return named


def is_postgres(address: str) -> bool:
    """Return whether an address is that of a PostgreSQL database, with or without a driver."""
    return urlsplit(address).scheme.partition("+")[0] in _SCHEMES


def _split(address: str) -> Database:
    plain = split_credentials(address)
    parts = urlsplit(plain.address)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = given.pop("host", None) or parts.hostname or ""
    user = plain.user or os.environ.get("PGUSER") or getpass.getuser()
    name = unquote(parts.path.removeprefix("/"))
    return Database(user, host, parts.port or _PORT, name, given, plain.password)


def prepare(of: Database) -> tuple[Connections, list[str]]:
    """Create the database and the two schemas if needed, and divide the connections.

    Returns:
        The size of each pool, and a line for each thing that was created.

    Raises:
        OrchestrationError: if the server does not answer, refuses, is too old, or has too few
            connections left.
    """
    check_drivers()
    created: list[str] = []
    try:
        return asyncio.run(_prepared(of, created)), created
    except PipelineError:
        raise
    except Exception as error:
        raise _explained(of, error) from error


def check_drivers() -> None:
    """Check that both drivers are installed.

    Raises:
        OrchestrationError: if one is missing.
    """
    for module in ("asyncpg", "psycopg2"):
        try:
            __import__(module)
        except ImportError as error:
            raise OrchestrationError(
                f"PostgreSQL needs the package {module}, which is not installed. Run `pip install "
                "'patchline[postgres]'`."
            ) from error


@contextmanager
def one_at_a_time(address: str) -> Iterator[None]:
    """Prevent other servers from creating or migrating tables while the block runs.

    Args:
        address: of MLflow's or Prefect's driver; nothing happens for other kinds of databases.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    if not is_postgres(address) or find_spec("asyncpg") is None:
        yield
        return
    of = _split(address)
    loop = asyncio.new_event_loop()
    try:
        try:
            connection = loop.run_until_complete(_connected(of, of.name))
            loop.run_until_complete(connection.execute(f"SELECT pg_advisory_lock({_LOCK_KEY})"))
        except Exception as error:
            raise _explained(of, error) from error
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the server releases it with the connection
                loop.run_until_complete(connection.close(timeout=_CONNECT_SECONDS))
    finally:
        loop.close()


def application_name(server: str, connections: int) -> str:
    """Return the name by which another `patchline up` counts the connections of a server.

    Args:
        server: `mlflow` or `prefect`.
        connections: the most that it opens.
    """
    return f"{_APPLICATION} {server} {socket.gethostname()[:24]} {os.getpid()} {connections}"


def divided(free: int) -> Connections | None:
    """Divide connections that are free among the pools; none if they are too few."""
    total = min(free, _MOST)
    if total < _FEWEST:
        return None
    of_mlflow = total * _SHARES_OF_7 // 7
    return Connections(of_mlflow, total - 2 * of_mlflow)


def mlflow_settings(of: Database, connections: int) -> dict[str, str]:
    """Return the variables of an MLflow server that uses the database.

    Args:
        of: the database.
        connections: the most that each of its two pools opens.
    """
    overflow = connections // 2
    return {
        **of.variables,
        "PGAPPNAME": application_name("mlflow", 2 * connections),
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": str(connections - overflow),
        "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": str(overflow),
    }


def prefect_settings(of: Database, connections: int) -> dict[str, str]:
    """Return the variables of a Prefect server that uses the database.

    Args:
        of: the database.
        connections: the most that its pool opens.
    """
    prefix, overflow = "PREFECT_SERVER_DATABASE_", connections // 2
    alchemy = f"{prefix}SQLALCHEMY_"
    return {
        **of.variables,
        f"{prefix}CONNECTION_URL": of.for_prefect(),
        f"{prefix}TIMEOUT": _STATEMENT_SECONDS,
        f"{alchemy}CONNECT_ARGS_SEARCH_PATH": f"{PREFECT_SCHEMA},public",
        f"{alchemy}CONNECT_ARGS_APPLICATION_NAME": application_name("prefect", connections),
        f"{alchemy}POOL_SIZE": str(connections - overflow),
        f"{alchemy}MAX_OVERFLOW": str(overflow),
    }


async def _prepared(of: Database, created: list[str]) -> Connections:
    try:
        connection = await _connected(of, of.name)
    except Exception as error:
        if getattr(error, "sqlstate", "") != "3D000":
            raise
        await _create_database(of)
        created.append(f"Created the database {of.name} on {of.host}.")
        connection = await _connected(of, of.name)
    try:
        if connection.get_server_version().major < _OLDEST:
            version = await connection.fetchval("SHOW server_version")
            raise OrchestrationError(
                f"The PostgreSQL server at {of.host} has version {version}, but version {_OLDEST} "
                "or later is needed. Update it."
            )
        connections = await _free_connections(of, connection)
        await _create_schemas(of, connection, created)
    finally:
        await connection.close(timeout=_CONNECT_SECONDS)
    return connections


async def _connected(of: Database, name: str) -> Connection:
    import asyncpg

    return await asyncpg.connect(
        host=of.host,
        port=of.port,
        user=of.user,
        password=of.password,
        database=name,
        timeout=_CONNECT_SECONDS,
    )


async def _create_database(of: Database) -> None:
    try:
        connection = await _connected(of, "postgres")
        try:
            await connection.execute(f"CREATE DATABASE {_quoted(of.name)}")
        finally:
            await connection.close(timeout=_CONNECT_SECONDS)
    except Exception as error:
        if getattr(error, "sqlstate", "") == "42P04":  # another `patchline up` was faster
            return
        if getattr(error, "sqlstate", "") in ("42501", "3D000", "28000"):
            raise OrchestrationError(
                f"The database {of.name} does not exist on {of.host}, and {of.user} may not create "
                f"it. Ask an administrator for `CREATE DATABASE {_quoted(of.name)} OWNER "
                f"{_quoted(of.user)}`."
            ) from error
        raise


async def _create_schemas(of: Database, connection: Connection, created: list[str]) -> None:
    query = "SELECT nspname FROM pg_namespace WHERE nspname = ANY($1)"
    wanted = (MLFLOW_SCHEMA, PREFECT_SCHEMA)
    existing = {row[0] for row in await connection.fetch(query, list(wanted))}
    for schema in wanted:
        if schema in existing:
            may = "SELECT has_schema_privilege($1, 'CREATE') AND has_schema_privilege($1, 'USAGE')"
            if await connection.fetchval(may, schema):
                continue
            raise OrchestrationError(
                f"{of.user} may not create tables in the schema {schema} of the database {of.name}."
                f" Ask an administrator for `ALTER SCHEMA {schema} OWNER TO {_quoted(of.user)}`."
            )
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        created.append(f"Created the schema {schema} in the database {of.name}.")


async def _free_connections(of: Database, connection: Connection) -> Connections:
    """Divide the connections that no other program has taken or may take.

    Raises:
        OrchestrationError: if they are too few.
    """
    limits = await connection.fetchrow(
        """SELECT current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true)::int, 0),
            (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
            (SELECT datconnlimit FROM pg_database WHERE datname = current_database())"""
    )
    limit = min(each for each in limits if each is not None and each >= 0)
    rows = await connection.fetch(
        """SELECT coalesce(application_name, ''), count(*) FROM pg_stat_activity
           WHERE datid IS NOT NULL AND pid <> pg_backend_pid() GROUP BY 1"""
    )
    taken = sum(max(int(count), _reserved(name)) for name, count in rows)
    connections = divided(limit - taken - _SPARE)
    if connections is None:
        raise OrchestrationError(
            f"The PostgreSQL server at {of.host} allows {limit} connections, of which other "
            f"programs use {taken}; the servers need {_FEWEST + _SPARE}. Raise max_connections "
            "there, or end other programs."
        )
    return connections


def _reserved(application: str) -> int:
    """Return how many connections a server of ours may open, by its name."""
    words = application.split()
    return int(words[-1]) if words[:1] == [_APPLICATION] and words[-1].isdecimal() else 0


_REFUSALS = {
    "28P01": ("refused the password of {user}", "Correct PGPASSWORD or --password-file."),
    "28": ("does not admit {user} ({told})", "Correct --database, or its pg_hba.conf."),
    "3D000": ("has no database {name} that {user} may use ({told})", "Correct --database."),
    "53300": (
        "has no free connection ({told})",
        "Raise max_connections there, or end other programs.",
    ),
    "25006": ("is read-only ({told})", "Name the primary server in --database."),
    "53": ("is out of space ({told})", "Free some there."),
    "57": ("is starting or stopping ({told})", "Try again in a minute."),
    "42501": (
        "does not let {user} write to the database {name} ({told})",
        "Ask an administrator for `GRANT CREATE ON DATABASE {name} TO {user}`.",
    ),
    "": ("cannot be used ({told})", "Correct --database, or see its log."),
}
"""What a server's refusal means, and the remedy, by how the code of the error begins
(PostgreSQL's documentation, appendix A)."""
_NO_PASSWORD = ("requires a password for {user}", "Set PGPASSWORD or --password-file.")
_FAILURES: tuple[tuple[type[Exception], tuple[str, str]], ...] = (
    (socket.gaierror, ("cannot be found: there is no such host", "Correct --database.")),
    (
        ssl.SSLError,
        ("has no certificate that can be verified ({told})", "Correct sslmode or sslrootcert."),
    ),
    (ConnectionRefusedError, ("does not answer", "Start it, or correct --database.")),
    (TimeoutError, ("does not answer", "Start it, or correct --database.")),
    (OSError, ("cannot be reached ({told})", "Start it, or correct --database.")),
)
"""The same of errors on the way to the server."""


def _explained(of: Database, error: Exception) -> OrchestrationError:
    """Return the error for a server that does not answer or refuses."""
    code = str(getattr(error, "sqlstate", None) or "")
    told = str(error).splitlines()[0] if str(error) else type(error).__name__
    failures = (words for kind, words in _FAILURES if isinstance(error, kind))
    refusals = (words for start, words in _REFUSALS.items() if code.startswith(start))
    what, remedy = next(failures, None) or next(refusals)
    if code == "28P01" and not (of.password or os.environ.get(PASSWORD_VARIABLE)):
        what, remedy = _NO_PASSWORD
    text = f"The PostgreSQL server at {of.host}, port {of.port}, {what}. {remedy}"
    return OrchestrationError(text.format(user=of.user, name=of.name, told=told))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
