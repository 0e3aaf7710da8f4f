"""Real Delta tables on disk, and the same ones behind a small S3 on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.rules.model import Table, TableKey


@dataclass
class Source:
    """A Delta table that a test writes to."""

    path: Path
    name: str = "docs"

    def write(self, *ids: int, mode: str = "append", **options) -> int:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "body": [f"text {i}" for i in ids]})
        configuration = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.path, rows, mode=mode, configuration=configuration, **options)  # pyright: ignore
        return self.delta.version()

    def write_versions(self, count: int) -> None:
        for i in range(count):
            self.write(i)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.path)

    @property
    def log(self) -> Path:
        return self.path / "_delta_log"

    def commit_file(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def table(self, uri: str | None = None, delta_id: str | None = None) -> Table:
        return Table(
            key=TableKey("sys", "db", self.name),
            table_id=1,
            uri=uri or str(self.path),
            pk=("id",),
            delta_id=delta_id or str(self.delta.metadata().id),
            added_at=datetime(2026, 1, 1, tzinfo=UTC),
        )


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A table without a commit yet."""
    return Source(tmp_path / "docs")


@pytest.fixture
def new_source(tmp_path: Path) -> Callable[[str], Source]:
    """Make tables by name."""
    return lambda name: Source(tmp_path / name, name)


@dataclass
class S3:
    """A folder served as buckets: HEAD, GET and ListObjectsV2."""

    root: Path
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)
    status: int = 0
    """When set, every request is answered with it."""
    answering: threading.Event = field(default_factory=threading.Event)
    """While it is not set, requests hang."""

    def take_requests(self) -> list[str]:
        taken, self.requests = self.requests, []
        return taken


def _handler(s3: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._object(with_body=False)

        def do_GET(self) -> None:
            if "list-type" in self.path:
                self._list()
            else:
                self._object(with_body=True)

        def _object(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path).lstrip("/")
            s3.requests.append(f"{self.command} {path.rpartition('/')[2]}")
            s3.answering.wait(timeout=30)
            file = s3.root / path
            if s3.status or not file.is_file():
                self._answer(s3.status or 404, b"", {})
                return
            stat, body = file.stat(), file.read_bytes()
            start, end, status = 0, len(body), 200
            if "Range" in self.headers:
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                start = int(first) if first else max(0, len(body) - int(last))
                end = int(last) + 1 if first and last else len(body)
                status = 206
            extra = {
                "ETag": f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}"',
                "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
                "Content-Range": f"bytes {start}-{min(end, len(body)) - 1}/{len(body)}",
            }
            self._answer(status, body[start:end], extra, with_body=with_body)

        def _list(self) -> None:
            asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            bucket = s3.root / unquote(urlsplit(self.path).path).strip("/")
            s3.requests.append(f"LIST {asked.get('start-after', '').rpartition('/')[2]}".strip())
            if s3.status:
                self._answer(s3.status, b"", {})
                return
            after = asked.get("start-after", "")
            names = sorted(str(f.relative_to(bucket)) for f in bucket.rglob("*") if f.is_file())
            names = [n for n in names if n.startswith(asked.get("prefix", "")) and n > after]
            contents = "".join(
                f"<Contents><Key>{escape(n)}</Key><Size>{(bucket / n).stat().st_size}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for n in names
            )
            body = f"<ListBucketResult><KeyCount>{len(names)}</KeyCount>{contents}"
            self._answer(200, f"{body}</ListBucketResult>".encode(), {})

        def _answer(
            self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Serve tmp_path/s3: its folders are buckets; the environment points to it."""
    s3 = S3(tmp_path / "s3")
    s3.root.mkdir()
    s3.answering.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(s3))
    s3.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3.endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    yield s3
    s3.answering.set()
    server.shutdown()
    server.server_close()
    thread.join()
