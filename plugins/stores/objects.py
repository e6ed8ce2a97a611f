"""Objects on S3 and its like, on Google Cloud Storage or on Azure, by obstore.

obstore (MIT) was chosen over s3fs by measurement (docs/reference/dependencies.md). It repeats what
fails with a 5xx status, throttling (`503 SlowDown`) included, or without a connection, with
exponential backoff; what still fails becomes one sentence here.

Credentials come from where the provider's own tools take them: for S3 from the `AWS_…` variables,
from `~/.aws` and from the machine's role. Where those of a file or a role are refused, they are
looked for again, and other ones are used from then on. `AWS_ENDPOINT_URL` names another server than
Amazon's; if it begins with `http://`, the connection is not encrypted, as the address says.
"""

from __future__ import annotations

import builtins
import datetime as dt
import functools
import os
import re
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.error import HTTPError

from patchline.pipeline.errors import (
    ConfigError,
    DataError,
    PipelineError,
    StorageError,
    StoreAwayError,
)
from patchline.pipeline.workspace.address import CREDENTIALS
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.object_store import (
    Address,
    ConflictError,
    Content,
    ObjectInfo,
    ObjectState,
    ObjectStore,
)
from patchline.plugin_api import PluginConfig, StoreContext, StorePlugin

_FIRST_PATIENCE_SECONDS = 10.0
"""How long the first connection to a bucket is tried; a running command waits longer."""
PATIENCE_SECONDS = 60.0
"""How long nothing arrives, or a request is repeated, before the store counts as unavailable."""
_LEAST_SECONDS = 10.0
"""However small the patience is, a server has so long for an answer."""
_LONGEST_SECONDS = 6 * 3600.0
"""Of a request that always makes progress: a large object on a slow connection."""
_UPLOAD_PATIENCE = 5
"""An upload is seen to progress only when a part is complete, so it gets a multiple of patience."""
_PART_BYTES = 5 << 20
_PARTS_AT_ONCE = 8
"""Of all uploads of this process: 40 MiB in 300 s, which an uplink of 1.2 Mbit/s can send."""
_MOST_PARTS = 9_000
"""Of one object; S3 takes 10,000."""
_KEPT_FOR = dt.timedelta(minutes=10)
"""How long keys of a role are used before they are asked for again; they are valid for longer."""
_SIGNED_FOR = dt.timedelta(minutes=5)
_NO_DATE = (OSError, HTTPException, KeyError, TypeError, ValueError)
"""What asking for the date of an answer may raise without saying anything about the store."""
_BACKOFF = {
    "init_backoff": dt.timedelta(seconds=0.1),
    "max_backoff": dt.timedelta(seconds=8),
    "base": 2.0,
}
_RETRIES = 12
_PIECE_BYTES = 1 << 20
"""Of a download; what arrived of an incomplete piece is lost when a connection breaks."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ODD_KEY = re.compile(r'\bPath "(.*)"(?:: | contained )')
_STATUS = re.compile(r"\b(?:status|code)[^\d]{0,12}([45]\d\d)\b|\b(503) ", re.IGNORECASE)
_BUCKET_CODES = frozenset({
    "NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "ContainerNotFound",
})  # fmt: skip
_CREDENTIAL_CODES = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "TokenRefreshRequired", "InvalidClientTokenId", "AuthFailure", "UnrecognizedClientException",
    "AuthenticationFailed", "InvalidAuthenticationInfo",
})  # fmt: skip
_DENIED_CODES = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem"})
_REASONS = {
    "connection refused": ("connection refused",),
    "dns error": ("dns error",),
    "timed out": ("timed out", "timedout", "kind: timeout"),
    "connection closed": ("connection closed", "incompletebody", "incompletemessage", "reset by"),
    "certificate": ("certificate",),
}
"""In the text of an error, in lower case."""
_SERVERS = {
    "s3": "the address of the server (AWS_ENDPOINT_URL)",
    "gs": "the address",
    "az": "the name of the account (AZURE_STORAGE_ACCOUNT_NAME)",
}
_VARIABLES = {
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE"),
    "az": (
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_", "AZURE_STORAGE_TOKEN"),
        *("AZURE_CLIENT_", "AZURE_FEDERATED_", "AZURE_MSI_", "AZURE_IDENTITY_", "AZURE_SKIP_"),
    ),
}
"""How the names of the variables begin that hold credentials, other than those of S3."""
_SETTINGS = {
    "s3": CREDENTIALS["s3"],
    "gs": CREDENTIALS["gs"],
    "az": f"{CREDENTIALS['az']}, or AZURE_STORAGE_SAS_KEY",
}
_GOOGLE_FILE = ".config/gcloud/application_default_credentials.json"
_INSTALL = "Install it with `pip install 'patchline[s3]'`."
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _with_new_credentials(
    method: Callable[Concatenate[RemoteStore, _Arguments], _Result],
) -> Callable[Concatenate[RemoteStore, _Arguments], _Result]:
    """Repeat a method once if its credentials are refused and there are others by now."""

    @functools.wraps(method)
    def repeated(
        store: RemoteStore, /, *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result:
        used = store.opened
        try:
            return method(store, *arguments, **named)
        except ConfigError as error:
            if not _is_of_credentials(error.__cause__):
                raise
            if store.opened is used and not store.open_again():
                raise
            return method(store, *arguments, **named)

    return repeated


class RemoteStore(ObjectStore):
    """The objects below an address.

    Args:
        address: the bucket and the path in it below which the objects are.
        patience_seconds: how long a request is repeated, by default `PATIENCE_SECONDS`.

    Raises:
        ConfigError: if obstore is not installed, or there are no credentials.
    """

    def __init__(self, address: Address, *, patience_seconds: float | None = None) -> None:
        self.uri = str(address)
        self._address = address
        self._patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._open(_provider(address))

    def _open(self, provider: Any) -> None:
        self._provider, settings = provider, {"credential_provider": provider} if provider else {}
        self._store = _open_store(self._address, self._patience, settings)
        self._uploads = _open_store(self._address, self._patience, settings, uploads=True)

    @property
    def opened(self) -> object:
        """What changes when other credentials are used."""
        return self._provider

    def open_again(self) -> bool:
        """Use the credentials that are there now, and return whether they are others.

        Raises:
            ConfigError: if there are none any more.
        """
        fresh = None if self._provider is None else _provider(self._address)
        if fresh is None or _keys(fresh) == _keys(self._provider):
            return False
        self._open(fresh)
        return True

    @_with_new_credentials
    def read(self, key: str) -> Content | None:
        """Return an object; None if there is none."""
        import obstore

        with self._present("read"):
            result = obstore.get(self._store, key)
            return Content(bytes(result.bytes()), _info(result.meta))
        return None

    @_with_new_credentials
    def read_range(
        self, key: str, start: int, stop: int, *, if_match: str = ""
    ) -> memoryview | None:
        """Return the bytes of an object from `start` to `stop`; None if there is none."""
        from obstore.exceptions import PreconditionError

        with self._present("read"):
            try:
                pieces = list(self._pieces(key, start, stop, if_match))
                return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            except PreconditionError as error:
                raise ConflictError(key) from error
        return None

    @_with_new_credentials
    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known about an object; None if there is none."""
        import obstore

        with self._present("read"):
            try:
                return _info(obstore.head(self._store, key))
            except Exception as error:
                if not _code(error) and _status(str(error)) in ("400", "403"):
                    obstore.get_range(self._store, key, start=0, end=1)  # tells why; a head cannot
                raise
        return None

    @_with_new_credentials
    def download(self, key: str, file: Path) -> bool:
        """Write an object into a file, and return whether there is one."""
        from obstore.exceptions import PreconditionError

        with self._errors("read"), storage_errors(file), file.open("wb") as opened:
            try:
                opened.writelines(self._pieces(key))
            except PreconditionError as error:
                raise StorageError(
                    f"{self.uri}/{key} changed while it was downloaded. Run again."
                ) from error
            except FileNotFoundError as error:
                self._check_bucket(error)
                return False
        return True

    def _pieces(
        self, key: str, start: int = 0, stop: int | None = None, if_match: str = ""
    ) -> Iterator[bytes]:
        """Yield an object, or a range of it.

        obstore resumes a broken connection, but not later than the patience after the first
        request. Here a new request resumes as long as something has arrived within the patience.
        """
        import obstore

        began = at = time.monotonic()
        pause = 0.1
        while stop is None or start < stop:
            options: Any = {"if_match": if_match} if if_match else {}
            if start or stop is not None:
                options["range"] = {"offset": start} if stop is None else (start, stop)
            try:
                result = obstore.get(self._store, key, options=options)
                size = int(result.meta["size"])
                stop = size if stop is None else min(stop, size)
                if_match = if_match or str(result.meta["e_tag"] or "")
                for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                    yield piece
                    start, at, pause = start + len(piece), time.monotonic(), 0.1
            except Exception as error:
                is_stalled = at == began or time.monotonic() - at >= self._patience
                if is_stalled or not if_match or not _may_pass(error):
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 8.0)
            else:
                return

    @_with_new_credentials
    def write(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: ObjectState | None = None,
    ) -> ObjectState:
        """Write an object as a whole, if the conditions hold."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        mode: Any = "overwrite"
        if if_absent:
            mode = "create"
        elif if_match is not None:
            named = {"e_tag": if_match.e_tag, "version": if_match.version}
            mode = {name: value for name, value in named.items() if value}
        with self._errors("written"):
            try:
                result = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                raise ConflictError(key) from error
            except NotFoundError as error:
                self._check_bucket(error)
                raise ConflictError(key) from error  # the object to replace is gone
        return ObjectState(str(result["e_tag"] or ""), str(result["version"] or ""))

    @_with_new_credentials
    def upload(self, file: Path, key: str) -> None:
        """Write the content of a file, of any size, as an object; a large one in parts."""
        import obstore

        with storage_errors(file), file.open("rb"):
            pass  # a missing file is no error of the store
        size = file.stat().st_size
        part = max(_PART_BYTES, -(-size // _MOST_PARTS))
        with self._errors("written"), _parts_on_their_way.taken(-(-size // _PART_BYTES)) as parts:
            at_once = max(1, parts * _PART_BYTES // part)
            obstore.put(self._uploads, key, file, chunk_size=part, max_concurrency=at_once)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with a prefix, in the order of their keys."""
        yield from self._list_below(prefix)

    @_with_new_credentials
    def _list_below(self, prefix: str) -> builtins.list[ObjectInfo]:
        import obstore

        folder = prefix.rpartition("/")[0]
        with self._errors("listed"):
            return sorted(
                info
                for page in obstore.list(self._store, folder or None)
                for each in page
                if (info := _info(each)).key.startswith(prefix)
            )

    @_with_new_credentials
    def delete(self, key: str) -> None:
        """Delete an object if there is one."""
        import obstore

        with self._present("written"):
            obstore.delete(self._store, key)

    def now(self) -> dt.datetime:
        """Return the time by the clock of the store, which dates each of its answers."""
        return self._date_of_answer() or self._date_of_object()

    def _date_of_answer(self) -> dt.datetime | None:
        """Return the date of an answer, whatever that is; None if this store does not tell it.

        obstore shows no heads of answers, but signs requests, except with some credentials.
        """
        import obstore

        try:
            url = obstore.sign(self._store, "HEAD", "patchline.json", _SIGNED_FOR)
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - of the store itself
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
                    head = answer.headers
            except HTTPError as error:
                with error:
                    head = error.headers if error.code < HTTPStatus.INTERNAL_SERVER_ERROR else {}
            return parsedate_to_datetime(head["Date"])
        except Exception as error:
            if _is_of_store(error) or isinstance(error, _NO_DATE):
                return None
            raise

    def _date_of_object(self) -> dt.datetime:
        """Return the date of an object that is written and deleted again."""
        key = f"clock/{uuid.uuid4().hex}"
        self.write(key, b"")
        try:
            info = self.info(key)
        finally:
            self.delete(key)
        if info is None:
            raise StorageError(
                f"{self.uri} does not hold what was just written to it. Choose a store that is "
                "consistent, as S3 is."
            )
        return info.modified

    def check_reachable(self) -> None:
        """Make sure that something answers at the address, whatever it answers.

        Raises:
            StoreAwayError: if nothing does.
        """
        try:
            self.info("patchline.json")
        except StoreAwayError:
            raise
        except PipelineError:  # whoever reads or writes an object says so
            return

    @contextmanager
    def _present(self, action: str) -> Iterator[None]:
        """Pass over a missing object; see `_errors`."""
        with self._errors(action):
            try:
                yield
            except FileNotFoundError as error:
                self._check_bucket(error)

    def _check_bucket(self, error: Exception) -> None:
        """Tell a missing bucket from a missing object."""
        if _code(error) in _BUCKET_CODES:
            raise error

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turn what a store answers into one sentence.

        Args:
            action: what was tried: read, written, or listed.
        """
        try:
            yield
        except (PipelineError, ConflictError):
            raise
        except Exception as error:
            if not _is_of_store(error):
                raise
            raise self._sentence(error, action) from error

    def _sentence(self, error: Exception, action: str) -> PipelineError:
        from obstore.exceptions import InvalidPathError

        code, text = _code(error), str(error)
        where = f" at {endpoint}" if (endpoint := _endpoint(self._address)) else ""
        if isinstance(error, InvalidPathError) and (odd := _ODD_KEY.search(text)):
            return DataError(
                f"{self.uri} cannot be listed, because the key of the object {odd[1]!r} in the "
                f"bucket {self._address.bucket} has an empty part or dots, which no file can have. "
                "Rename or delete the object, or choose an address that it is not below."
            )
        if code in _BUCKET_CODES:
            return ConfigError(
                f"{self.uri} names the bucket {self._address.bucket}, which does not exist{where} "
                f"({code}). Check the address and the region, or create the bucket."
            )
        if _is_of_credentials(error):
            return ConfigError(
                f"{self.uri} does not accept the credentials{where} ({code or 'no key'}). "
                f"{_remedy(self._address)}"
            )
        is_denied = code in _DENIED_CODES or _status(text) in ("401", "403")
        is_denied = is_denied or isinstance(error, PermissionError)
        if (is_denied or not _status(text)) and not _has_credentials(self._address):
            return ConfigError(
                f"There are no credentials for {self.uri}, and this machine has no role that may "
                f"read it. {_remedy(self._address)}"
            )
        if is_denied:
            return StorageError(
                f"{self.uri} may not be {action} with these credentials{where} "
                f"({code or 'access denied'}). Ask the owner of the bucket for access, or choose "
                "another address."
            )
        return self._passing(error, where)

    def _passing(self, error: Exception, where: str) -> StorageError:
        """Return the sentence for what may be over the next time."""
        code, text = _code(error), str(error)
        if code == "SlowDown" or _status(text) == "503":
            return StorageError(
                f"{self.uri} has limited the rate of requests{where} for {self._patience:.0f} s "
                f"({code or '503'}). Try again later; a run can be resumed."
            )
        status = _status(text)
        if status == "400":
            return StorageError(
                f"{self.uri} does not understand the request{where} (status 400, "
                f"{code or 'without a reason'}). Check the region (AWS_REGION), the kind of the "
                "server, and whether the credentials are still valid."
            )
        if status:
            return StorageError(
                f"{self.uri} failed{where} with status {status} ({code or 'no reason given'}). "
                "Try again later; a run can be resumed."
            )
        return StoreAwayError(
            f"{self.uri} cannot be reached{where} ({_reason(error)}). Check the network and "
            f"{_SERVERS[self._address.scheme]}; a run that has begun can be resumed."
        )


class _Budget:
    """How much may be under way at the same time, in all threads of this process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.reset()

    def reset(self) -> None:
        """Begin without what another process, which was forked, has taken."""
        self._free = self._most
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[int]:
        """Wait until an amount is free, and yield how much of it this block may use."""
        amount = max(1, min(amount, self._most))
        with self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield amount
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


_parts_on_their_way = _Budget(_PARTS_AT_ONCE)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_parts_on_their_way.reset)


def _open_store(
    address: Address,
    patience_seconds: float,
    credentials: Mapping[str, Any],
    *,
    uploads: bool = False,
) -> Any:
    try:
        from obstore.store import from_url
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{address} needs the package obstore, which is not installed. {_INSTALL}"
        ) from error
    endpoint = _endpoint(address)
    client: dict[str, Any] = {
        "connect_timeout": dt.timedelta(seconds=min(10.0, patience_seconds)),
        "allow_http": endpoint.startswith("http://"),
    }
    retry: dict[str, Any] = {"backoff": _BACKOFF, "max_retries": _RETRIES}
    if uploads:  # a read timeout would include the time for sending the body
        longest = dt.timedelta(seconds=max(_LEAST_SECONDS, _UPLOAD_PATIENCE * patience_seconds))
        client["timeout"] = retry["retry_timeout"] = longest
    else:
        client["timeout"] = dt.timedelta(seconds=_LONGEST_SECONDS)
        client["read_timeout"] = dt.timedelta(seconds=max(_LEAST_SECONDS, patience_seconds / 2))
        retry["retry_timeout"] = dt.timedelta(seconds=patience_seconds)
    settings = dict(credentials)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region and address.scheme == "s3":
        settings["region"] = region
    if endpoint and address.scheme == "s3":
        settings["endpoint"] = endpoint
    try:
        return from_url(str(address), client_options=client, retry_config=retry, **settings)  # type: ignore[arg-type, call-overload, unused-ignore]  # a store of any kind
    except Exception as error:
        if not _is_of_store(error):
            raise
        reason = " ".join(str(error).split("Debug source")[0].split())
        raise ConfigError(
            f"{address} cannot be opened ({reason}). Set {_SETTINGS[address.scheme]}."
        ) from error


def _provider(address: Address) -> Any:
    """Return what gives the credentials for S3; None where obstore finds them by itself.

    Raises:
        ConfigError: if there are no credentials.
    """
    environment: Mapping[str, str] = os.environ
    is_public = environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes")
    if is_public or address.scheme != "s3":
        return None
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The credentials for {address} are not in AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, and other places need the package boto3. {_INSTALL}"
        ) from error
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            raise ConfigError(f"There are no credentials for {address}. {_remedy(address)}")
        return Boto3CredentialProvider(session, ttl=_KEPT_FOR)
    except BotoCoreError as error:
        raise ConfigError(
            f"The credentials for {address} cannot be had ({error}). {_remedy(address)}"
        ) from error


def _keys(provider: Any) -> tuple[str, ...]:
    """Return the keys that a provider of credentials gives at present.

    Raises:
        ConfigError: if they cannot be had.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return tuple(provider.credentials.get_frozen_credentials())
    except (BotoCoreError, ClientError) as error:
        raise ConfigError(
            f"New credentials for S3 cannot be had ({error}). Renew those that the commands of AWS "
            "use."
        ) from error


def _endpoint(address: Address) -> str:
    """Return the server that the environment names instead of the provider's own."""
    if address.scheme != "s3":
        return ""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((value for name in names if (value := os.environ.get(name))), "")


def _has_credentials(address: Address) -> bool:
    """Return whether there are credentials in a place that is known; a role is in none."""
    if address.scheme == "s3":  # `_provider` has looked
        return True
    if address.scheme == "gs" and (Path.home() / _GOOGLE_FILE).exists():
        return True
    return any(name.upper().startswith(_VARIABLES[address.scheme]) for name in os.environ)


def _remedy(address: Address) -> str:
    public = "; for a public bucket, AWS_SKIP_SIGNATURE=true" if address.scheme == "s3" else ""
    return f"Set {CREDENTIALS[address.scheme]}{public}."


def _is_of_store(error: Exception) -> bool:
    """Return whether an error comes from obstore; it derives some from built-in ones."""
    return type(error).__module__.startswith("obstore") or (
        isinstance(error, (FileNotFoundError, PermissionError, OSError)) and error.errno is None
    )


def _may_pass(error: Exception) -> bool:
    """Return whether a request may succeed if it is repeated: no answer, or a server's failure."""
    text = str(error)
    return not isinstance(error, (FileNotFoundError, PermissionError)) and (
        not _status(text) or _status(text).startswith("5")
    )


def _code(error: Exception) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _is_of_credentials(error: BaseException | None) -> bool:
    """Return whether a store has refused the credentials themselves."""
    return error is not None and (
        "CredentialsError" in (text := str(error))
        or any(code in _CREDENTIAL_CODES for code in _CODE.findall(text))
    )


def _status(text: str) -> str:
    match = _STATUS.search(text)
    return (match[1] or match[2]) if match else ""


def _reason(error: Exception) -> str:
    """Return the innermost cause that obstore gives, which is the one that a person understands."""
    lowered = str(error).lower()
    for reason, words in _REASONS.items():
        if any(each in lowered for each in words):
            return reason
    text = " ".join(str(error).split("Debug source")[0].split())
    return text[:160] or type(error).__name__


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        key=str(meta["path"]),
        bytes=int(meta["size"]),
        e_tag=str(meta["e_tag"] or ""),
        modified=meta["last_modified"],
        version=str(meta.get("version") or ""),
    )


# -- the plugins ------------------------------------------------------------------------------


_reached: set[tuple[str, str]] = set()
"""The buckets that this process has been connected to."""


class ObjectsConfig(PluginConfig):
    """There is nothing to set: credentials come from where the provider's own tools take them."""


def build(_config: ObjectsConfig, context: StoreContext) -> RemoteStore:
    """Build the store; the first one of a bucket makes sure that something answers.

    Raises:
        ConfigError: if obstore is not installed, or there are no credentials.
        StorageError: if nothing answers.
    """
    address = context.address
    if (key := (address.scheme, address.bucket)) not in _reached:
        RemoteStore(address, patience_seconds=_FIRST_PATIENCE_SECONDS).check_reachable()
        _reached.add(key)
    return RemoteStore(address, patience_seconds=context.patience_seconds)


def example(_folder: Path) -> str:
    """Return the address that the environment names.

    Raises:
        ConfigError: if it names none: nobody's bucket is written to unless asked.
    """
    address = os.environ.get(CHECKED, "")
    if not address:
        raise ConfigError(
            f"{CHECKED} is not set. Set it to an address without objects, such as "
            "s3://bucket/empty, where the checks may write and delete."
        )
    return address


CHECKED = "PATCHLINE_CHECKED_STORE"
"""Environment variable with an address for the conformance checks."""
s3 = gs = az = StorePlugin(
    summary="Objects on S3 and its like, on Google Cloud Storage or on Azure, by obstore",
    paper="",
    config_class=ObjectsConfig,
    build=build,
    example=example,
)
