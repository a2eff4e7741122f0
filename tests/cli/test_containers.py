"""Commands where little can be written: no home, no /dev/shm, no network, a user without a name."""

import os
import subprocess
import sys

import numpy as np
import pytest

# Everything is read-only but the folder of the outputs.
SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs {out}
mount -o remount,ro,bind /
mount --bind /dev/null /etc/passwd
mount -t tmpfs -o ro tmpfs /dev/shm
unset HOME
export TMPDIR={out} PYTHONPATH={root} JAX_PLATFORMS=cpu
cd /
{commands}
"""
# In one process: to start two takes most of the time.
COMMANDS = """
taskset -c 0 {python} -c 'from cluster_jax.cli import app
app.main(["cluster", "--features={here}/x.npy", "--workdir={out}/c", "--quiet"])
app.main(["predict", "--workdir={out}/c", "--features={here}/x.npy", "--json"])'
"""


def _sandboxed(tmp_path, commands):
    out = tmp_path / "out"
    out.mkdir()
    names = {"out": out, "here": tmp_path, "python": sys.executable, "root": os.getcwd()}
    script = SCRIPT.format(commands=commands.format(**names), **names)
    command = ["unshare", "--mount", "--net", "bash", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def _allowed(tmp_path_factory):
    try:
        done = _sandboxed(
            tmp_path_factory.mktemp("allowed"), "touch {here}/x 2>/dev/null || exit 7"
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode != 7:
        pytest.skip(f"no sandbox is allowed: {done.stderr}")


@pytest.mark.usefixtures("_allowed")
def test_embeddings_in_a_read_only_container(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(60, 6)) + 9 * (np.arange(60) % 2)[:, None])
    done = _sandboxed(tmp_path, COMMANDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"rows": 60' in done.stdout
