"""Jobs of several processes of CPU devices, which run one command."""

import os
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_STARTED = []


def start(*command, cwd=ROOT, module="cluster_jax.cli.app", **variables):
    """A process of `cluster-jax`, or of another module, on the CPU."""
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places, "JAX_PLATFORMS": "cpu", **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *command], cwd=cwd, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _STARTED.append(process)
    return process


def compiling(config, workdir):
    """A process that trains, once it compiles its step."""
    process = start("train", f"--config={config}", f"--workdir={workdir}")
    for line in process.stdout:
        if line == "compiling\n":
            break
    return process


class Job:
    """Two processes of one command, each with two devices.

    Args:
        command: arguments of `cluster-jax`.
        workdir: where `wait_for` looks for files.
        more: of `start`.
    """

    def __init__(self, command, workdir, **more):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self.workdir = workdir
        self.hosts = [
            start(
                *command, JAX_NUM_CPU_DEVICES="2", JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=rank,
                JAX_COORDINATOR_ADDRESS=f"localhost:{port}", **more,
            )
            for rank in "01"
        ]  # fmt: skip

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
