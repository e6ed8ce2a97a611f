"""The bucket for artifacts: whether it exists, and whether these keys may write to it."""

from __future__ import annotations

import os
import uuid
from typing import Any

from patchline.pipeline.errors import OrchestrationError

_SECONDS = 10
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_ENDPOINTS = ("MLFLOW_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_WRONG_KEYS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidClientTokenId",
    "AuthFailure",
    "InvalidToken",
    "ExpiredToken",
)
_DENIED = ("AccessDenied", "403", "Forbidden", "MethodNotAllowed", "AllAccessDisabled")
_WRONG_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "307")
_BUSY = ("SlowDown", "503", "ServiceUnavailable", "RequestTimeout")


def check(place: str) -> None:
    """Write a small object to the place, read it and delete it.

    Args:
        place: s3://bucket/prefix.

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
        raise OrchestrationError(_refusal(place, error.response.get("Error", {}))) from error
    except (BotoCoreError, ValueError) as error:
        raise OrchestrationError(_failure(place, error)) from error


def _refusal(place: str, error: dict[str, Any]) -> str:
    code, told = str(error.get("Code", "")), str(error.get("Message", "")) or "no reason given"
    bucket = place.removeprefix("s3://").partition("/")[0]
    if code in ("NoSuchBucket", "404"):
        return f"The bucket {bucket} does not exist{_where()}. Create it, or correct --artifacts."
    if code in _WRONG_KEYS:
        return f"S3{_where()} does not accept the keys ({code}: {told}). Correct {_KEYS}."
    if code in _DENIED:
        return (
            f"These keys may not write to {place} ({code}: {told}). Allow them to put, get and "
            "delete objects there, or use other keys."
        )
    if code in _WRONG_REGION:
        return f"The bucket {bucket} is in another region ({told}). Set AWS_DEFAULT_REGION to its."
    if code in _BUSY:
        return f"S3{_where()} is too busy at the moment ({code}). Try again in a minute."
    return f"{place} cannot be used ({code}: {told}). Correct --artifacts or the keys."


def _failure(place: str, error: Exception) -> str:
    kind, told = type(error).__name__, str(error).splitlines()[0]
    if kind in ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"):
        return f"There are no keys for {place}. Set {_KEYS}, or write them to ~/.aws/credentials."
    if "Connect" in kind or "Timeout" in kind or "SSL" in kind:
        named = next((name for name in _ENDPOINTS if os.environ.get(name)), "AWS_ENDPOINT_URL")
        return f"S3{_where()} does not answer ({told}). Start it, or correct {named}."
    return f"{place} cannot be used ({told}). Correct --artifacts, the keys or the endpoint."


def _where() -> str:
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    return f" at {endpoint}" if endpoint else ""
