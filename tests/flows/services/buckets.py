"""What the tests ask an S3 server beside what Patchline does: its objects, users and rights."""

from __future__ import annotations

import itertools
import json
import urllib.request
from typing import Any

from tests.object_server import KEYS, ObjectServer
from tests.patience import patient

_numbers = itertools.count()


def administrator(server: ObjectServer, service: str = "s3") -> Any:
    """Return a client that may do everything."""
    import boto3

    return boto3.session.Session().client(
        service,
        endpoint_url=server.url,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


def keys_in(server: ObjectServer, bucket: str) -> list[str]:
    """Return the keys of a bucket's objects."""
    pages = administrator(server).get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [each["Key"] for page in pages for each in page.get("Contents", [])]


def new_user(server: ObjectServer, *actions: str) -> dict[str, str]:
    """Return the keys of a new user who may do some actions, as variables."""
    users, name = administrator(server, "iam"), f"user-{next(_numbers)}"
    users.create_user(UserName=name)
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    users.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=policy)
    made = users.create_access_key(UserName=name)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
    }


def check_keys_after(server: ObjectServer, requests: int) -> None:
    """Let a server accept any keys for some more requests, and then only those of its users."""
    request = urllib.request.Request(
        f"{server.url}/moto-api/reset-auth",
        data=str(requests).encode(),
        headers={"content-type": "text/plain"},
    )
    urllib.request.urlopen(request, timeout=patient(30)).close()
