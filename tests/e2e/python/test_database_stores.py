"""Backups come back from the stores of other clouds: what an operator sets is what reaches them. S3's is in `test_database_servers.py`."""

from __future__ import annotations

import os
from typing import Iterator, Union

import pytest
from bucket import AZURITE, AzureContainer, GoogleBucket
from platform_process import Platform
from test_database_servers import check_backups_come_back, first_database

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(params=["gs", "az"])
def store(request: pytest.FixtureRequest) -> Iterator[Union[GoogleBucket, AzureContainer]]:
    if request.param == "az" and AZURITE not in os.environ:
        pytest.skip(f"no Azurite: {AZURITE} is not set; `cargo xtask test` brings it where node is 20 or newer")
    with GoogleBucket() if request.param == "gs" else AzureContainer() as made:
        yield made


def test_backups_restore_from_google_and_azure_storage(store: Union[GoogleBucket, AzureContainer]) -> None:
    platform = Platform("psos", "10.232.0.0/16", "--warm", "postgres-16")
    platform.environment.update(store.environment)
    try:
        client = platform.start().client()
        database = first_database(client, "far away")
        check_backups_come_back(store, client, database)
        client.databases.delete(database["id"])
        assert store.names(database["id"]) == []
    finally:
        platform.stop()
