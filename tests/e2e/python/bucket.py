"""A bucket on loopback. moto's server speaks S3, conditional writes included: a backup never replaces anything."""

from __future__ import annotations

import logging
from typing import Dict, List

import boto3
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

NAME = "backups"
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}


class Bucket:
    """`with Bucket() as bucket:` a platform that has `bucket.environment` keeps its backups there."""

    def __enter__(self) -> "Bucket":
        # A line for each request would be all that a failed test shows.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)
        self.client.create_bucket(Bucket=NAME)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @property
    def environment(self) -> Dict[str, str]:
        settings = {"AWS_ENDPOINT": self.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        keys = {name.upper(): value for name, value in KEYS.items()}
        return {"PANDASTACK_BACKUPS": f"s3://{NAME}/e2e", **settings, **keys}

    def names(self, database_id: str) -> List[str]:
        """What is kept of a database, below its folder."""
        folder = f"e2e/{database_id}/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=folder)
        return [found["Key"][len(folder):] for page in pages for found in page.get("Contents", [])]
