"""Where a table lives and how to reach it.

A *uri* is a local path, `file://…`, `s3://…`, `gs://…` or `az://…` (`abfss://…`). *Storage options*
are the settings of its store under the names that dagster-deltalake's storage configs use
(`access_key_id`, `endpoint`, …); delta-rs and obstore understand the same ones. They come from the
environment variables that every tool of that cloud reads (`AWS_ACCESS_KEY_ID`, …), never from uris.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from iscp_dagster.errors import UsageError

if TYPE_CHECKING:
    from dagster_deltalake import DeltaTableResource
    from obstore.store import ObjectStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PROVIDERS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "az": "azure",
    "azure": "azure",
    "adl": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_ENV_PREFIX = {"s3": "AWS", "gcs": "GOOGLE", "azure": "AZURE"}

# Option -> the variables it is read from, the first one that is set wins.
_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "virtual_hosted_style_request": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
        "unsigned_payload": ("AWS_UNSIGNED_PAYLOAD",),
        "skip_signature": ("AWS_SKIP_SIGNATURE",),
        "metadata_endpoint": ("AWS_METADATA_ENDPOINT",),
        "copy_if_not_exists": ("AWS_COPY_IF_NOT_EXISTS",),
    },
    "gcs": {
        "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
        "skip_signature": ("GOOGLE_SKIP_SIGNATURE",),
    },
    "azure": {
        "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
        "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
        "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
        "tenant_id": ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
        "sas_key": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        "token": ("AZURE_STORAGE_TOKEN",),
        "federated_token_file": ("AZURE_FEDERATED_TOKEN_FILE",),
        "use_azure_cli": ("AZURE_USE_AZURE_CLI",),
        "use_fabric_endpoint": ("AZURE_USE_FABRIC_ENDPOINT",),
        "msi_endpoint": ("AZURE_MSI_ENDPOINT",),
        "msi_resource_id": ("AZURE_MSI_RESOURCE_ID",),
        "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "use_emulator": ("AZURE_STORAGE_USE_EMULATOR",),
    },
}
# Options of the HTTP client, read from <AWS|GOOGLE|AZURE>_<NAME>.
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "timeout",
)
# A tick has seconds: one table that does not answer must not keep it for minutes.
_CLIENT_DEFAULTS = {"connect_timeout": "5s", "timeout": "10s"}
_RETRY = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


def provider_of(uri: str) -> str:
    """Return `local`, `s3`, `gcs` or `azure`; another scheme is a usage error."""
    found = _SCHEME.match(uri)
    if not found or found[1].lower() == "file":
        return "local"
    provider = _PROVIDERS.get(found[1].lower())
    if provider is None:
        raise UsageError(
            f"uri: {found[1]}:// is not a store that is known",
            cure="use a local path, file://, s3://, gs:// or az://",
        )
    return provider


def local_path(uri: str) -> Path:
    """Return the path of a local uri."""
    if _SCHEME.match(uri):
        return Path(unquote(urlsplit(uri).path))
    return Path(uri)


def storage_options_from_env(uri: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the storage options for `uri` that the environment holds.

    Args:
        uri: the table's uri; a local one has no options.
        environ: instead of the process's environment.
    """
    env = os.environ if environ is None else environ
    provider = provider_of(uri)
    if provider == "local":
        return {}
    names = _OPTIONS[provider] | {
        name: (f"{_ENV_PREFIX[provider]}_{name.upper()}",) for name in _CLIENT_OPTIONS
    }
    options = {
        option: next(env[name] for name in variables if env.get(name))
        for option, variables in names.items()
        if any(env.get(name) for name in variables)
    }
    if options.get("endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    return options


def bucket_and_path(uri: str) -> tuple[str, str]:
    """Split the uri of an object store into its bucket's uri and the path in it."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}", uri.split("://", 1)[1].partition("/")[2].strip("/")


def open_store(uri: str, environ: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the object store at `uri`, impatient enough for a tick."""
    from obstore import store

    options = storage_options_from_env(uri, environ)
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in client}
    # The overloads ask for one cloud's options; which cloud it is, only the uri tells.
    from_url: Any = store.from_url
    return from_url(
        uri,
        config=config or None,
        client_options=_CLIENT_DEFAULTS | client,
        retry_config=_RETRY,
    )


def delta_table_resource(uri: str, environ: Mapping[str, str] | None = None) -> DeltaTableResource:
    """Return dagster-deltalake's resource for the table at `uri`, set up from the environment."""
    from dagster_deltalake import (
        AzureConfig,
        DeltaTableResource,
        GcsConfig,
        LocalConfig,
        S3Config,
    )
    from dagster_deltalake.config import ClientConfig

    options: dict[str, Any] = dict(storage_options_from_env(uri, environ))
    configs = {"local": LocalConfig, "s3": S3Config, "gcs": GcsConfig, "azure": AzureConfig}
    config = configs[provider_of(uri)]

    def known(fields: Mapping[str, object]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name in fields}

    return DeltaTableResource(
        url=uri,
        storage_options=config(**known(config.model_fields)),
        client_options=ClientConfig(**known(ClientConfig.model_fields)),
    )
