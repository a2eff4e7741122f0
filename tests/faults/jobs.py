"""Jobs of two processes of two devices each, which run one command."""

import os
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_STARTED = []


class Job:
    """Two processes of one command.

    Args:
        command: arguments of `cluster-jax`.
        workdir: where `wait_for` looks for files.
        own: arguments of the second process alone.
    """

    def __init__(self, command, workdir, own=()):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        shared = {
            **os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2", "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": "2",
        }  # fmt: skip
        command = [sys.executable, "-m", "cluster_jax.cli.app", *command]
        self.workdir = workdir
        self.hosts = [
            subprocess.Popen(
                [*command, *(own if rank else ())],
                cwd=ROOT, env={**shared, "JAX_PROCESS_ID": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        _STARTED.extend(self.hosts)

    def wait_for(self, file, seconds=240):
        """Until a file is there; ends the test if the job ends before."""
        end = time.monotonic() + seconds
        while not (self.workdir / file).exists():
            assert time.monotonic() < end, file
            assert all(host.poll() is None for host in self.hosts), self.end()
            time.sleep(0.1)
        return self

    def end(self, seconds=60):
        """Exit codes and standard errors, after at most a minute."""
        end = time.monotonic() + seconds
        errors = [host.communicate(timeout=end - time.monotonic())[1] for host in self.hosts]
        return [host.returncode for host in self.hosts], errors

    def succeed(self):
        """Until the job ends, which must succeed."""
        codes, errors = self.end(400)
        assert codes == [0, 0], errors


def kill_all():
    """Ends what is left of all jobs."""
    for host in _STARTED:
        host.kill()
        host.communicate()
