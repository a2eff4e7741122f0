"""A small storage server on the loopback: the JSON API of Google Cloud Storage, in memory.

It has what a training and TFDS ask for: objects with generations and their preconditions, simple
and resumable uploads, ranges, listing by delimiter, deletions. It answers with an error or cuts
the connection as a test asks.

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

CUT, LOST = "cut", "lost"  # before a request is answered, and after it was carried out
_STAMP = "2026-01-01T00:00:00.000000Z"
# Status, content and headers.
_Answer = tuple[int, Any, dict[str, str]]
# Name of an object or prefix -> status or word of a fault, or None: the request is answered.
Fault = Callable[[str], int | str | None]


class _Object(NamedTuple):
    data: bytes
    generation: int


class _Refused(Exception):
    """Its argument is the status."""


class Server:
    """The server, its objects and its faults.

    Attributes:
        objects: (bucket, name) -> object.
        faults: asked in turn about each request.
    """

    def __init__(self, bucket: str):
        self.bucket = bucket
        self.objects: dict[tuple[str, str], _Object] = {}
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.numbers = itertools.count(1_700_000_000_000_001)
        self.uploads: dict[str, tuple[str, bytearray]] = {}
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

    def put(self, bucket: str, name: str, data: bytes) -> _Answer:
        """Stores an object."""
        with self.lock:
            self.objects[bucket, name] = _Object(bytes(data), next(self.numbers))
            return self.resource(name)

    def files(self, prefix: str = "") -> dict[str, bytes]:
        """Contents of the objects of a prefix, `bucket/folder`, by the rest of their names."""
        with self.lock:
            named = {f"{bucket}/{name}": x.data for (bucket, name), x in self.objects.items()}
        return {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}

    def resource(self, name: str) -> _Answer:
        """What the API says about an object."""
        found = self.objects[self.bucket, name]
        about = {
            "kind": "storage#object", "id": f"{self.bucket}/{name}/{found.generation}",
            "bucket": self.bucket, "name": name, "size": str(len(found.data)),
            "generation": str(found.generation), "metageneration": "1",
            "md5Hash": base64.b64encode(hashlib.md5(found.data).digest()).decode(),
            "timeCreated": _STAMP, "updated": _STAMP, "storageClass": "STANDARD",
        }  # fmt: skip
        return 200, about, {"x-goog-generation": str(found.generation)}

    def listing(self, query: dict[str, str]) -> _Answer:
        """The objects of a prefix, and its folders."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        items, folders = [], dict[str, None]()
        for name in sorted(name for _, name in self.objects):
            if name.startswith(prefix) and start <= name < end:
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
                else:
                    items.append(self.resource(name)[1])
        return 200, {"kind": "storage#objects", "items": items, "prefixes": list(folders)}, {}


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
        root, *parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        parts = [root, *parts][[root, *parts].index("b") :]  # b, the bucket, o, a name
        name = parts[3] if len(parts) > 3 else self.query.get("name", self.query.get("prefix", ""))
        token = self.query.get("upload_id", "")
        with self.store.lock:
            name = self.store.uploads[token][0] if token in self.store.uploads else name
            fault = next(filter(None, (fault(name) for fault in self.store.faults)), None)
            answer: _Answer = (fault, {}, {}) if isinstance(fault, int) else (200, {}, {})
            if fault is None or fault == LOST:
                try:
                    answer = self._carry_out(root, parts, name, body)
                except _Refused as refused:
                    answer = refused.args[0], {}, {}
        if fault in (CUT, LOST):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._send(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = _all

    def _carry_out(self, root: str, parts: list[str], name: str, body: bytes) -> _Answer:
        store, query, key = self.store, self.query, (parts[1], name)
        if parts[1] != store.bucket:
            raise _Refused(404)
        if len(parts) == 2:
            return 200, {"kind": "storage#bucket", "id": parts[1], "name": parts[1]}, {}
        if "upload_id" in query:
            return self._part(name, body)
        if len(parts) == 3 and root != "upload":
            return store.listing(query)
        found = store.objects.get(key)
        now = found.generation if found else 0
        if int(query.get("ifGenerationMatch", now)) != now:
            raise _Refused(412)
        if int(query.get("ifGenerationNotMatch", -1)) == now:
            raise _Refused(304)
        if root == "upload":
            return self._upload(name or json.loads(body)["name"], body)
        if found is None or int(query.get("generation", now)) != now:
            raise _Refused(404)
        if self.command == "DELETE":
            del store.objects[key]
            return 204, b"", {}
        if root == "download" or query.get("alt") == "media":
            return self._read(found)
        return store.resource(name)

    def _read(self, found: _Object) -> _Answer:
        told = {"x-goog-generation": str(found.generation), "ETag": str(found.generation)}
        size = len(found.data)
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return 200, found.data, told
        first = int(match[1]) if match[1] else max(0, size - int(match[2]))
        last = min(int(match[2]), size - 1) if match[1] and match[2] else size - 1
        told["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, found.data[first : last + 1], told

    def _upload(self, name: str, body: bytes) -> _Answer:
        store = self.store
        if self.query.get("uploadType") != "resumable":
            return store.put(store.bucket, name, body)
        token = f"upload{next(store.numbers)}"
        store.uploads[token] = name, bytearray()
        place = f"{store.url}/upload/storage/v1/b/{store.bucket}/o?upload_id={token}"
        return 200, b"", {"Location": place}

    def _part(self, name: str, body: bytes) -> _Answer:
        """Of a resumable upload; one whose answer was lost may come again."""
        held = self.store.uploads[self.query["upload_id"]][1]
        span = self.headers.get("Content-Range") or f"bytes 0-0/{len(body)}"
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", span)
        first = int(match[1]) if match and match[1] else len(held)
        held[first : first + len(body)] = body
        if match and match[3] == str(len(held)):
            return self.store.put(self.store.bucket, name, bytes(held))
        return 308, b"", {"Range": f"bytes=0-{len(held) - 1}"} if held else {}

    def _send(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        if status >= 400:
            answer = {"error": {"code": status, "message": "", "errors": [{"message": ""}]}}
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        data = b"" if status == 304 else data
        self.send_response(status)
        self.send_header(
            "Content-Type",
            "application/octet-stream" if isinstance(answer, bytes) else "application/json",
        )
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


# Faults.


def every(n: int, answers: tuple[int | str, ...], where: str = "") -> Fault:
    """Each n-th request, of names that match a regular expression, fails in turn by `answers`."""
    counter, turns = itertools.count(1), itertools.cycle(answers)

    def fault(name: str) -> int | str | None:
        return next(turns) if re.search(where, name) and next(counter) % n == 0 else None

    return fault


def always(answer: int | str) -> Fault:
    """Every request fails."""
    return lambda name: answer
