"""Environment variables that libraries read when they are imported.

They disable telemetry, update checks and pickle, unless the user has set them, and keep the traffic
between processes of this machine away from proxies.
"""

from __future__ import annotations

import os

from patchline.pipeline.workers.host import environment_variables

_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_OFFLINE": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "patchline",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_COLORS": "false",
}

NAMES = (
    *_ENVIRONMENT,
    *environment_variables.PROXY_VARIABLES,
    *environment_variables.CERTIFICATE_VARIABLES,
)
"""Names of the variables that `apply` may change."""


def apply() -> None:
    """Set the variables that the user has not set, and correct those that break our clients."""
    environment_variables.correct_proxies()
    environment_variables.correct_certificates()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def forget() -> None:
    """Forget what `apply` removed, because the variables are as the user has set them again."""
    environment_variables.forget_proxies()
    environment_variables.forget_certificates()


def explain_left_out() -> list[str]:
    """Return one sentence for each of the user's variables that has no effect, or only in part."""
    return [
        *filter(None, [environment_variables.proxies_left_out()]),
        *environment_variables.certificates_left_out(),
    ]
