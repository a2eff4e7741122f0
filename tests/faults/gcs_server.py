"""A small storage server on the loopback: the JSON API of Google Cloud Storage, in memory.

It has what a training and TFDS ask for: objects with generations and their preconditions, simple
and resumable uploads, ranges, listing by delimiter and page, deletions. It answers with an error or
cuts the connection as a test asks.

gcsfs, google-cloud-storage and TensorStore come here by the variables of `environment`.
"""

import base64
import contextlib
import hashlib
import http.server
import itertools
import json
import re
import socket
import sys
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

_STAMP = "2026-01-01T00:00:00.000000Z"
_REASONS = {
    401: "Anonymous caller does not have access; sign in.",
    403: "The caller does not have permission.",
    412: "At least one of the pre-conditions you specified did not hold.",
    429: "The rate limit of the project for requests is exceeded.",
    503: "The service is not available for a moment.",
}
CUT, LOST = "cut", "lost"  # before a request is answered, and after it was carried out


class Request(NamedTuple):
    """A request: kind ("read", "write", "list", "facts", "delete" or "bucket"), and name.

    A bucket's own facts are of kind "bucket", those of an object "facts".
    """

    kind: str
    bucket: str
    name: str


class _Object(NamedTuple):
    data: bytes
    generation: int
    more: dict[str, Any]


class _Refused(Exception):
    def __init__(self, status: int, reason: str = ""):
        self.status, self.reason = status, reason or _REASONS.get(status, "")


# Request -> status or word of a fault, or None: it is answered.
Fault = Callable[[Request], int | str | None]


class Server:
    """The server, its objects and its faults.

    Args:
        buckets: names of its buckets.

    Attributes:
        objects: (bucket, name) -> object.
        faults: asked in turn about each request.
    """

    def __init__(self, *buckets: str):
        self.buckets = set(buckets)
        self.objects: dict[tuple[str, str], _Object] = {}
        self.faults: list[Fault] = []
        self._lock = threading.RLock()
        self._generations = itertools.count(1_700_000_000_000_001)
        self._uploads: dict[str, tuple[str, str, dict, dict, bytearray]] = {}
        self._done: dict[str, _Object] = {}
        handler = type("Handler", (_Handler,), {"store": self})
        self._http = _Threads(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which the libraries find it, and search for no credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "NO_GCE_CHECK": "true",
            "GOOGLE_CLOUD_PROJECT": "none",
            # Else gcsfs asks by gRPC whether folders are real ones.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def close(self) -> None:
        """Ends the server."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def put(self, bucket: str, name: str, data: bytes, more: dict | None = None) -> _Object:
        """Stores an object."""
        with self._lock:
            found = _Object(bytes(data), next(self._generations), more or {})
            self.objects[bucket, name] = found
            return found

    def files(self, prefix: str = "") -> dict[str, bytes]:
        """Contents of the objects of a prefix, `bucket/folder`, by the rest of their names."""
        with self._lock:
            named = {f"{bucket}/{name}": x.data for (bucket, name), x in self.objects.items()}
        return {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}

    # What the handler calls.

    def fault_of(self, request: Request) -> int | str | None:
        """The fault of a request, which each fault of the server hears of."""
        with self._lock:
            return next(filter(None, (fault(request) for fault in self.faults)), None)

    def get(self, bucket: str, name: str, query: dict[str, str]) -> _Object:
        with self._lock:
            self.check_bucket(bucket)
            found = self.objects.get((bucket, name))
            self._check(found, query)
            if found is None or query.get("generation", str(found.generation)) != str(
                found.generation
            ):
                raise _Refused(404, f"No such object: {bucket}/{name}")
            return found

    def write(self, bucket: str, name: str, data: bytes, query: dict, more: dict) -> _Object:
        with self._lock:
            self.check_bucket(bucket)
            self._check(self.objects.get((bucket, name)), query)
            return self.put(bucket, name, data, more)

    def delete(self, bucket: str, name: str, query: dict[str, str]) -> None:
        with self._lock:
            self.get(bucket, name, query)
            del self.objects[bucket, name]

    def listing(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        with self._lock:
            self.check_bucket(bucket)
            names = sorted(name for of, name in self.objects if of == bucket)
            objects = {name: self.objects[bucket, name] for name in names}
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        most = min(int(query.get("maxResults", 1000)), 1000)
        start, end = query.get("startOffset", ""), query.get("endOffset")
        after = base64.b64decode(query.get("pageToken", "")).decode()
        items, prefixes, last = [], list[str](), None
        for name in names:
            if not name.startswith(prefix) or name < start or (end and name >= end):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            folder = prefix + head + str(delimiter) if found else None
            key = folder or name
            if key <= after or key in prefixes:
                continue
            if len(items) + len(prefixes) == most:
                token = base64.b64encode(str(last).encode()).decode()
                break
            last = key
            if folder is None:
                items.append(resource(bucket, name, objects[name]))
            else:
                prefixes.append(folder)
        else:
            token = None
        answer: dict[str, Any] = {"kind": "storage#objects", "items": items, "prefixes": prefixes}
        return answer if token is None else {**answer, "nextPageToken": token}

    def check_bucket(self, bucket: str) -> None:
        if bucket not in self.buckets:
            raise _Refused(404, "The specified bucket does not exist.")

    def begin(self, bucket: str, name: str, query: dict, more: dict) -> str:
        with self._lock:
            self.check_bucket(bucket)
            self._check(self.objects.get((bucket, name)), query)
            token = f"upload{next(self._generations)}"
            self._uploads[token] = bucket, name, query, more, bytearray()
            return token

    def resume(self, token: str, data: bytes, span: str | None) -> _Object | int:
        """The object once it is complete; else the number of bytes that are there."""
        with self._lock:
            if token in self._done:  # Its answer was lost.
                return self._done[token]
            bucket, name, query, more, held = self._uploads[token]
            match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", span or "")
            first = int(match[1]) if match and match[1] else 0 if match is None else len(held)
            held[first : first + len(data)] = data
            if match is None or (match[3] != "*" and int(match[3]) == len(held)):
                self._done[token] = self.write(bucket, name, bytes(held), query, more)
                return self._done[token]
            return len(held)

    def name_of(self, token: str) -> tuple[str, str]:
        with self._lock:
            return self._uploads[token][:2] if token in self._uploads else ("", "")

    def _check(self, found: _Object | None, query: dict[str, str]) -> None:
        now = 0 if found is None else found.generation
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != now:
            raise _Refused(412)
        if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == now:
            raise _Refused(304)


def resource(bucket: str, name: str, found: _Object) -> dict[str, Any]:
    """What the API says about an object."""
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{found.generation}",
        "bucket": bucket,
        "name": name,
        "size": str(len(found.data)),
        "generation": str(found.generation),
        "metageneration": "1",
        "md5Hash": base64.b64encode(hashlib.md5(found.data).digest()).decode(),
        "timeCreated": _STAMP,
        "updated": _STAMP,
        "storageClass": "STANDARD",
        **{key: found.more[key] for key in ("contentType", "metadata") if key in found.more},
    }


class _Threads(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # Clients may be killed.
            super().handle_error(request, address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Server

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _all(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        action = self._read_action(parts)
        request = self._named(action, parts)
        fault = self.store.fault_of(request)
        if fault == CUT:
            return self._cut()
        if isinstance(fault, int):
            return self._refuse(_Refused(fault))
        if fault == LOST:
            with contextlib.suppress(_Refused):
                self._carry_out(action, request, body)
            return self._cut()
        try:
            answer = self._carry_out(action, request, body)
        except _Refused as refused:
            return self._refuse(refused)
        self._send(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = _all

    def _read_action(self, parts: list[str]) -> str:
        if parts[0] == "upload":
            return "part" if "upload_id" in self.query else "upload"
        if parts[0] == "download" or self.query.get("alt") == "media":
            return "read"
        while parts[:1] in (["storage"], ["v1"]):
            del parts[0]
        if len(parts) < 3:
            return "bucket"
        if len(parts) == 3:
            return "list"
        return "delete" if self.command == "DELETE" else "facts"

    def _named(self, action: str, parts: list[str]) -> Request:
        kind = {"part": "write", "upload": "write"}.get(action, action)
        if action == "part":
            return Request(kind, *self.store.name_of(self.query["upload_id"]))
        while parts[:1] in (["storage"], ["v1"], ["upload"], ["download"]):
            del parts[0]
        name = self.query.get("name" if action == "upload" else "prefix", "")
        return Request(kind, parts[1], parts[3] if len(parts) > 3 else name)

    def _carry_out(
        self, action: str, request: Request, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body and headers of the answer."""
        store, query, bucket, name = self.store, self.query, request.bucket, request.name
        if action == "part":
            return self._part(body)
        if action == "upload":
            return self._upload(bucket, name, body)
        if action == "read":
            return self._read(store.get(bucket, name, query))
        if action == "bucket":
            store.check_bucket(bucket)
            return 200, {"kind": "storage#bucket", "id": bucket, "name": bucket}, {}
        if action == "list":
            return 200, store.listing(bucket, query), {}
        if action == "delete":
            store.delete(bucket, name, query)
            return 204, b"", {}
        return 200, resource(bucket, name, store.get(bucket, name, query)), {}

    def _read(self, found: _Object) -> tuple[int, Any, dict[str, str]]:
        told = {"x-goog-generation": str(found.generation), "ETag": str(found.generation)}
        size = len(found.data)
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return 200, found.data, told
        first = int(match[1]) if match[1] else max(0, size - int(match[2]))
        last = min(int(match[2]), size - 1) if match[1] and match[2] else size - 1
        told["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, found.data[first : last + 1], told

    def _upload(self, bucket: str, name: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        store, query = self.store, self.query
        if query.get("uploadType") == "resumable":
            facts = json.loads(body or b"{}")
            token = store.begin(bucket, name or facts["name"], query, facts)
            place = f"{store.url}/upload/storage/v1/b/{bucket}/o?upload_id={token}"
            return 200, b"", {"Location": place}
        found = store.write(bucket, name, body, query, {})
        told = {"x-goog-generation": str(found.generation)}
        return 200, resource(bucket, name, found), told

    def _part(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        token = self.query["upload_id"]
        bucket, name = self.store.name_of(token)
        found = self.store.resume(token, body, self.headers.get("Content-Range"))
        if isinstance(found, int):
            return 308, b"", {"Range": f"bytes=0-{found - 1}"} if found else {}
        return 200, resource(bucket, name, found), {}

    def _refuse(self, refused: _Refused) -> None:
        error = {"code": refused.status, "message": refused.reason}
        error["errors"] = [{"message": refused.reason}]  # type: ignore[assignment]
        self._send(refused.status, b"" if refused.status == 304 else {"error": error}, {})

    def _send(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        is_json = not isinstance(answer, bytes)
        data = json.dumps(answer).encode() if is_json else answer
        self.send_response(status)
        if "Content-Type" not in headers:
            kind = "application/json" if is_json else "application/octet-stream"
            self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


# Faults.


def every(n: int, answers: tuple[int | str, ...], where: str = "") -> Fault:
    """Each n-th request, of names that match a regular expression, fails in turn by `answers`."""
    counter, turns, lock = itertools.count(1), itertools.cycle(answers), threading.Lock()

    def fault(request: Request) -> int | str | None:
        if not re.search(where, request.name):
            return None
        with lock:
            return next(turns) if next(counter) % n == 0 else None

    return fault


def always(answer: int | str, *kinds: str, where: str = "") -> Fault:
    """Requests of some kinds, and of names that match a regular expression, fail."""

    def fault(request: Request) -> int | str | None:
        is_meant = (not kinds or request.kind in kinds) and re.search(where, request.name)
        return answer if is_meant else None

    return fault
