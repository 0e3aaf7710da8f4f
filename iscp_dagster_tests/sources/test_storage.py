"""Storage options from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp_dagster.errors import UsageError
from iscp_dagster.sources.storage import (
    bucket_and_path,
    delta_table_resource,
    local_path,
    open_store,
    provider_of,
    storage_options_from_env,
)

AWS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "AZURE_STORAGE_ACCOUNT_NAME": "acct",
    "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
    "GOOGLE_SERVICE_ACCOUNT": "/sa.json",
}


def test_each_cloud_gets_its_own_options_and_no_other():
    assert storage_options_from_env("s3://bucket/t", AWS) == {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "eu-west-1",
        "endpoint": "http://127.0.0.1:9000",
        "allow_http": "true",
    }
    azure = {"account_name": "acct", "account_key": "a2V5"}
    assert storage_options_from_env("abfss://c@acct.dfs.core.windows.net/t", AWS) == azure
    assert storage_options_from_env("gs://b/t", AWS) == {"service_account": "/sa.json"}
    assert storage_options_from_env("/data/t", AWS) == {}


def test_the_more_specific_variable_wins_and_an_empty_one_does_not_count():
    env = {"AWS_REGION": "", "AWS_DEFAULT_REGION": "a", "AWS_ENDPOINT_URL_S3": "https://s3"}
    options = storage_options_from_env("s3://b/t", env | {"AWS_ENDPOINT_URL": "https://all"})
    assert options == {"region": "a", "endpoint": "https://s3"}


def test_obstore_and_dagster_take_the_options(monkeypatch: pytest.MonkeyPatch):
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    assert "bucket" in repr(open_store("s3://bucket", AWS))
    assert "acct" in repr(open_store("az://container", AWS))
    config = delta_table_resource("s3://bucket/t", AWS)
    assert config.storage_options.str_dict()["endpoint"] == "http://127.0.0.1:9000"
    assert config.client_options is not None
    assert config.client_options.str_dict() == {"allow_http": "True"}


@pytest.mark.parametrize(
    ("uri", "path"),
    [("/data/my table", "/data/my table"), ("file:///data/my%20table", "/data/my table")],
)
def test_local_uris_become_paths(uri: str, path: str):
    assert provider_of(uri) == "local"
    assert local_path(uri) == Path(path)


def test_a_uri_splits_into_bucket_and_path():
    assert bucket_and_path("s3://b/x y/z/") == ("s3://b", "x y/z")
    azure = "abfss://c@acct.dfs.core.windows.net"
    assert bucket_and_path(f"{azure}/t#1") == (azure, "t#1")


def test_an_unknown_store_is_a_usage_error():
    with pytest.raises(UsageError, match="ftp://"):
        provider_of("ftp://host/t")
