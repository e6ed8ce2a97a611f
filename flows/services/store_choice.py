"""Which stores `patchline up` uses: its flags, then a file, then those that it used before."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchline.flows.prefect_api import postgres
from patchline.pipeline.errors import ConfigError, OrchestrationError, first_line
from patchline.pipeline.redaction import split_credentials, without_credentials
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.access import check_secret
from patchline.pipeline.workspace.tracking import team_stores
from patchline.pipeline.workspace.tracking.team_stores import TeamStores

LOCAL = "local"
"""The value of a flag that leads back to files in the folder."""
_OTHERS = 0o077


def choose_stores(
    folder: Path, flags: TeamStores, config: Path | None
) -> tuple[TeamStores, list[str]]:
    """Return the stores to use, and notes for the user; put the password into the environment.

    The servers inherit the environment; nothing that is returned contains a password.

    Args:
        folder: the working directory of the servers.
        flags: the stores that the command line names.
        config: a YAML file with the same settings.

    Raises:
        ConfigError: if a setting is wrong, or a password is on the command line.
    """
    if flags.database and split_credentials(flags.database).password is not None:
        raise ConfigError(
            "--database contains a password, which every user of this machine can read in the list "
            f"of processes. Leave it out, and set {postgres.PASSWORD_VARIABLE} or --password-file."
        )
    given, notes = _from_file(config) if config else (TeamStores(), [])
    layers = (team_stores.recall(folder), given, flags)
    settings: dict[str, Any] = {}
    for layer in layers:
        settings |= {name: getattr(layer, name) for name in layer.model_fields_set}
    for name in ("database", "artifacts"):
        if settings.get(name) == LOCAL:
            settings[name] = None
    stores = TeamStores.model_validate(settings)
    return _without_password(stores, "--config" if given.database else "--database"), notes


def _from_file(file: Path) -> tuple[TeamStores, list[str]]:
    """Return the settings of a file; paths in it are relative to its folder."""
    from patchline.pipeline.config_files import read_settings

    try:
        stores = TeamStores.model_validate(read_settings(file))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{file}: {place}: {first['msg']}. Its settings are "
            f"{', '.join(TeamStores.model_fields)}."
        ) from error
    notes = []
    has_password = split_credentials(stores.database or "").password is not None
    if has_password and stat.S_IMODE(file.stat().st_mode) & _OTHERS:
        notes.append(
            f"{file} contains a password, and other users may read it. Run `chmod 600 {file}`."
        )
    if stores.password_file:
        absolute = file.resolve().parent / stores.password_file
        stores = stores.model_copy(update={"password_file": absolute})
    return stores, notes


def _without_password(stores: TeamStores, named_by: str) -> TeamStores:
    """Check the address of the database and the place for artifacts; move out the password."""
    update: dict[str, Any] = {}
    if stores.password_file:
        update["password_file"] = stores.password_file.expanduser().resolve()
        os.environ[postgres.PASSWORD_VARIABLE] = _first_line(update["password_file"])
    if stores.database:
        named = postgres.database(stores.database, named_by)
        os.environ.update(named.variables)
        update["database"] = named.address
    if stores.artifacts:
        update["artifacts"] = _check_artifacts(stores.artifacts)
    return stores.model_copy(update=update)


def _first_line(file: Path) -> str:
    try:
        check_secret(file, "password file")
        line = file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The password file {file} cannot be read ({error}). Correct --password-file."
        ) from error
    if not line:
        raise ConfigError(
            f"The first line of the password file {file} is empty. Write the password there."
        )
    return line


def _check_artifacts(place: str) -> str:
    if place.startswith("s3://"):
        bucket, _, _ = place.removeprefix("s3://").partition("/")
        if "@" in bucket or not bucket:
            raise ConfigError(
                f"--artifacts {without_credentials(place)} is not the address of a bucket."
                " Write it as s3://bucket/prefix, with the keys in AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY."
            )
        return place.rstrip("/")
    if "://" in place:
        raise ConfigError(
            f"--artifacts {without_credentials(place)} is neither s3://bucket/prefix nor "
            "a folder. Choose one of them."
        )
    return str(Path(place).expanduser().resolve())


_SECONDS = 10
_ENDPOINTS = ("MLFLOW_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def check(place: str) -> None:
    """Write a small object to the place, read it and delete it.

    Args:
        place: an address such as s3://bucket/prefix.

    Raises:
        OrchestrationError: if that is not possible, with the reason.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise OrchestrationError(
            "Artifacts on S3 need the package boto3, which is not installed. Run `pip install "
            "'patchline[s3]'`."
        ) from error
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    key = f"{prefix}/.patchline-check-{uuid.uuid4().hex[:8]}".lstrip("/")
    try:
        client: Any = boto3.session.Session().client(  # of the variables as they are now
            "s3",
            endpoint_url=os.environ.get(_ENDPOINTS[0]) or None,
            config=Config(
                connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 2}
            ),
        )
        client.put_object(Bucket=bucket, Key=key, Body=b"patchline")
        client.get_object(Bucket=bucket, Key=key)["Body"].read()
        client.delete_object(Bucket=bucket, Key=key)
    except ClientError as error:
        refusal = error.response.get("Error", {})
        told = str(refusal.get("Message", "")) or "no reason given"
        raise _unusable(place, told, code=str(refusal.get("Code", ""))) from error
    except (BotoCoreError, ValueError) as error:
        raise _unusable(place, first_line(error), kind=type(error).__name__) from error


def _unusable(
    place: str, told: str, *, code: str | None = None, kind: str = ""
) -> OrchestrationError:
    """Return the error for a store that answers with a code, or that cannot be asked."""
    named = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
    text = render_markdown(
        "unusable_store.md.j2",
        __package__,
        place=place,
        told=told,
        code=code,
        kind=kind,
        named=named,
        where=f" at {os.environ[named]}" if named else "",
    )
    return OrchestrationError(text)
