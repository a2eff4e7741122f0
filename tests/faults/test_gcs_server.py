"""The storage server of the tests answers the libraries as Google's does."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

from tests.faults import gcs_server
from tests.faults.gcs_server import Server

gcsfs = pytest.importorskip("gcsfs.core")


@pytest.fixture
def server():
    server = Server("bucket")
    yield server
    server.close()


@pytest.fixture
def files(server, monkeypatch):
    """gcsfs, as it is."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return gcsfs.GCSFileSystem(skip_instance_cache=True, use_listings_cache=False, token="anon")


def test_objects(server, files):
    content = np.random.default_rng(0).bytes(600_000)
    files.pipe("bucket/a/small", b"small")
    with files.open("bucket/a/large", "wb", block_size=1 << 18) as file:  # resumable
        for start in range(0, len(content), 100_000):
            file.write(content[start : start + 100_000])
    assert files.cat("bucket/a/large") == content
    assert files.cat_file("bucket/a/large", 1000, 1005) == content[1000:1005]
    files.mv("bucket/a/small", "bucket/b/moved")
    files.cp_file("bucket/b/moved", "bucket/b/copied")
    assert server.files("bucket/") == {
        "a/large": content, "b/moved": b"small", "b/copied": b"small",
    }  # fmt: skip
    files.rm("bucket/b", recursive=True)
    assert not files.exists("bucket/b/moved")
    with pytest.raises(FileNotFoundError):
        files.cat("bucket/b/moved")
    with pytest.raises(FileNotFoundError):
        files.pipe("none/a", b"")


def test_a_listing_has_pages_and_folders(server, files):
    for i in range(2345):
        server.put("bucket", f"many/{i:04}", b"")
        server.put("bucket", f"folders/{i:04}/file", b"")
    server.put("bucket", "file", b"")
    assert sorted(files.ls("bucket")) == ["bucket/file", "bucket/folders", "bucket/many"]
    assert len(files.ls("bucket/many")) == len(files.ls("bucket/folders")) == 2345
    assert server.count("list") == 7


def test_preconditions(server):
    def write(generation):
        place = "upload/storage/v1/b/bucket/o?uploadType=media&name=a"
        url = f"{server.url}/{place}&ifGenerationMatch={generation}"
        request = urllib.request.Request(url, b"1", method="POST")
        return urllib.request.urlopen(request).status

    assert write(0) == 200
    with pytest.raises(urllib.error.HTTPError, match="412"):
        write(0)
    assert write(server.objects["bucket", "a"].generation) == 200


def test_tensorstore_writes_reads_and_lists(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    # It reads its variables once.
    code = (
        "import tensorstore as ts; a = ts.KvStore.open('gs://bucket/t/').result();"
        "a.write('x', b'123').result(); a.write('y/z', b'4').result();"
        "assert a.read('x').result().value == b'123';"
        "assert sorted(a.list().result()) == [b'x', b'y/z']"
    )
    server.faults.append(gcs_server.every(3, (503, gcs_server.CUT)))
    subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=True, timeout=60)
    assert server.files("bucket/t/") == {"x": b"123", "y/z": b"4"}
