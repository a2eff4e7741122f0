"""Jobs of several processes of CPU devices, which run one command."""

import os
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_STARTED = []


class Job:
    """Processes of one command.

    Args:
        command: arguments of `cluster-jax`.
        workdir: where `wait_for` looks for files.
        own: arguments of the last process alone.
        processes: how many.
        devices: how many each has.
    """

    def __init__(self, command, workdir, own=(), processes=2, devices=2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        shared = {
            **os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices), "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": str(processes),
        }  # fmt: skip
        self.workdir = workdir
        self.hosts = [
            subprocess.Popen(
                [sys.executable, "-m", "cluster_jax.cli.app", *command,
                 *(own if rank == processes - 1 else ())],
                cwd=ROOT, env={**shared, "JAX_PROCESS_ID": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(processes)
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

    def succeed(self, seconds=600):
        """Until the job ends, which must succeed."""
        codes, errors = self.end(seconds)
        assert not any(codes), errors


def kill_all():
    """Ends what is left of all jobs."""
    for host in _STARTED:
        host.kill()
        host.communicate()
