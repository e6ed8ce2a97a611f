"""A real PostgreSQL server for tests: its files in a temporary folder, one port on loopback.

PostgreSQL refuses to run as root, so there it runs as another user of the machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.free_ports import free_port
from tests.patience import patient
from tests.process_owners import VARIABLE, owned_by

_DEBIAN = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
}
USER, PASSWORD = "team", "Pl4@nted/base"


def program(name: str) -> Path | None:
    """Return a program of PostgreSQL's server; none where it is not installed."""
    versions = sorted(_DEBIAN.glob("*"), key=lambda each: each.name.zfill(4), reverse=True)
    places = [each / "bin" / name for each in versions]
    on_path = shutil.which(name)
    return next((each for each in places if each.exists()), Path(on_path) if on_path else None)


def missing() -> str:
    """Return why no server can be started here; empty if one can."""
    if program("initdb") is None or program("pg_ctl") is None:
        return "PostgreSQL is not installed (Debian's package postgresql)"
    if os.geteuid() == 0 and _other_user() is None:
        return "PostgreSQL does not run as root, and there is no other user"
    return ""


@dataclass(frozen=True)
class PostgresServer:
    """A running server with a user that has a password."""

    folder: Path
    port: int
    settings: Mapping[str, str]
    owner: str
    """Whose process it is; see `tests.process_owners`."""

    def address(self, database: str = "patchline", user: str = USER) -> str:
        """Return the address of a database, without a password."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute a statement as the server's administrator; return the rows, if there are any."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="admin", password=PASSWORD, dbname=database
        )
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def start(self) -> None:
        """Start it."""
        log = str(self.folder / "server.log")
        # Not owned by the test that has stopped it.
        with owned_by(self.owner) if self.owner else nullcontext():
            self.control("-l", log, *_options(self.port, self.folder, self.settings), "start")

    def control(self, *words: str) -> None:
        """Call PostgreSQL's own program that starts and stops it."""
        data = str(self.folder / "data")
        _run(self.folder, "pg_ctl", "-D", data, "-w", "-s", "-t", "60", *words)


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Create and start a server; stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="patchline-postgres-"))
    try:
        if user := _other_user():
            os.chown(folder, user.pw_uid, user.pw_gid)
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        (folder / "password").chmod(0o644)
        options = ("--auth-host=scram-sha-256", "--auth-local=trust", "-E", "UTF8", "--no-sync")
        data = str(folder / "data")
        password = f"--pwfile={folder / 'password'}"
        _run(folder, "initdb", "-D", data, "-U", "admin", password, "--locale=C", *options)
        server = PostgresServer(folder, free_port(), settings, os.environ.get(VARIABLE, ""))
        server.start()
        try:
            server.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            yield server
        finally:
            server.control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(port: int, folder: Path, settings: Mapping[str, str]) -> tuple[str, ...]:
    given = {**_SETTINGS, "port": str(port), "unix_socket_directories": str(folder), **settings}
    return ("-o", " ".join(f"-c {name}={value}" for name, value in given.items()))


def _run(folder: Path, name: str, *arguments: str) -> None:
    path, user = program(name), _other_user()
    assert path is not None, name
    done = subprocess.run(
        [str(path), *arguments],
        cwd=folder,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a pipe would be the server's, too
        stderr=subprocess.DEVNULL,
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, (name, arguments, _log(folder))


def _log(folder: Path) -> str:
    log = folder / "server.log"
    return log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""


def _other_user() -> pwd.struct_passwd | None:
    """Return who runs the server; none if that is the user of the tests."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None
