"""A server that talks as the Hugging Face Hub does, on this machine: for the tests of `traceql ingest hf://...`.

It has what huggingface_hub asks for when it lists and fetches files: a tree in pages, what is known of single paths,
and the files, large ones (LFS) by a redirect to where they lie. Errors have the headers by which that library tells
them.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2
"""Rows of a page of a tree; the Hub's have 1000."""
LFS_BYTES = 50_000
"""From here on a file is a large one."""
TOKEN = "hf_of_the_tests"


@dataclass
class Repository:
    """Its files by revision and path."""

    revisions: dict[str, dict[str, bytes]]
    is_private: bool = False
    """Without the token nobody sees that it is there."""
    is_gated: bool = False
    """Its files are listed, but not handed out without the token."""


@dataclass
class FakeHub:
    """Repositories by kind and name (`datasets/owner/name`), and what was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request."""
    agents: set[str] = field(default_factory=set)
    url: str = ""

    def fetched(self) -> list[str]:
        """The revisions and paths of all files whose content went out; large ones by their digest."""
        gets = [path for method, path in self.asked if method == "GET"]
        return [path.partition("/resolve/")[2] or path for path in gets if "/resolve/" in path or "/lfs/" in path]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub at its URL, until the context ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub})) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _RefusedError(Exception):
    """A request that gets an error, with the word by which the library tells which."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Says nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))  # else a connection is closed upon it
        split = urlsplit(self.path)
        self.hub.asked.append((self.command, unquote(split.path)))
        self.hub.agents.add(self.headers["User-Agent"])
        try:
            match [unquote(part) for part in split.path.strip("/").split("/")]:
                case ["api", kind, owner, name, "tree", revision, *below]:
                    self._tree(self._files(f"{kind}/{owner}/{name}", revision), "/".join(below), parse_qs(split.query))
                case ["api", kind, owner, name, "paths-info", revision]:
                    files = self._files(f"{kind}/{owner}/{name}", revision)
                    self._json([_row(path, files[path]) for path in parse_qs(body.decode())["paths"] if path in files])
                case [kind, owner, name, "resolve", revision, *path]:
                    self._resolve(f"{kind}/{owner}/{name}", revision, "/".join(path))
                case ["lfs", digest]:
                    self._send(self._blob(digest))
                case _:
                    self._send(b"", 404)
        except _RefusedError as refused:
            self._send(b"", refused.status, {"X-Error-Code": refused.code, "X-Error-Message": refused.code})

    def _files(self, name: str, revision: str) -> dict[str, bytes]:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.is_private and not self._has_token()):
            raise _RefusedError(401, "RepoNotFound")
        if revision not in repository.revisions:
            raise _RefusedError(404, "RevisionNotFound")
        return repository.revisions[revision]

    def _has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _tree(self, files: dict[str, bytes], folder: str, query: dict[str, list[str]]) -> None:
        below = f"{folder}/" if folder else ""
        assert query["recursive"] == ["true"]
        inside = {path: content for path, content in sorted(files.items()) if path.startswith(below)}
        if not inside:
            raise _RefusedError(404, "EntryNotFound")
        folders = {str(parent) for path in inside for parent in PurePosixPath(path).parents} - {".", folder}
        rows: list[object] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
            for path in sorted(folders) if path.startswith(below)
        ]  # fmt: skip
        rows += [_row(path, content) for path, content in inside.items()]
        first = int(query.get("cursor", ["0"])[0])
        more = {}
        if first + PAGE < len(rows):
            path = urlsplit(self.path).path
            more = {"Link": f'<{self.hub.url}{path}?recursive=true&cursor={first + PAGE}>; rel="next"'}
        self._json(rows[first : first + PAGE], more)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        files = self._files(name, revision)
        if path not in files:
            raise _RefusedError(404, "EntryNotFound")
        if self.hub.repositories[name].is_gated and not self._has_token():
            raise _RefusedError(401, "GatedRepo")
        content = files[path]
        digest = hashlib.sha256(content).hexdigest()
        told = {"X-Repo-Commit": "c" * 40}
        if len(content) >= LFS_BYTES:
            there = f"{self.hub.url.replace('127.0.0.1', 'localhost')}/lfs/{digest}"  # another host, to the library
            linked = {"Location": there, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self._send(b"", 302, told | linked)
            return
        self._send(content, 200, told | {"ETag": f'"{_blob_id(content)}"'})

    def _blob(self, digest: str) -> bytes:
        return next(
            content for repository in self.hub.repositories.values() for files in repository.revisions.values()
            for content in files.values() if hashlib.sha256(content).hexdigest() == digest
        )  # fmt: skip

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), 200, {"Content-Type": "application/json"} | (headers or {}))

    def _send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _row(path: str, content: bytes) -> dict[str, object]:
    """What a tree says of a file; git holds a pointer in the place of a large one."""
    row: dict[str, object] = {"type": "file", "oid": _blob_id(content), "size": len(content), "path": path}
    if len(content) >= LFS_BYTES:
        digest = hashlib.sha256(content).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()
        row |= {"oid": _blob_id(pointer), "lfs": {"oid": digest, "size": len(content), "pointerSize": len(pointer)}}
    return row


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
