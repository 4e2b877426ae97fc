"""An etcd process for tests, on one of the test's hosts (netns.py)."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from nodes_test import free_port

# etcd listens before its own election is complete.
HEALTHY = "import sys, urllib.request; sys.exit(b'true' not in urllib.request.urlopen(sys.argv[1] + '/health', timeout=5).read())"


class Etcd:
    def __init__(self, hosts, host):
        """Starts the server and waits until it answers. Without etcd the test fails."""
        if shutil.which("etcd") is None:
            raise RuntimeError("there is no etcd here: deploy/install-deps.sh --tests installs it")
        self.hosts, self.host, self.process = hosts, host, None
        self.address = hosts.address(host)
        self.client, self.peer = free_port(), free_port()
        # In memory (/dev/shm) if available: etcd flushes its files at each change.
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-etcd-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.start()

    @property
    def url(self):
        return f"etcd://{self.address}:{self.client}"

    def start(self):
        client, peer = (f"http://{self.address}:{port}" for port in (self.client, self.peer))
        with (self.data / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.hosts.command(self.host, "etcd", "--name=test", f"--data-dir={self.data / 'data'}", f"--listen-client-urls={client}",
                                   f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                                   f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}"),
                stdout=log, stderr=log)
        end = time.monotonic() + 60
        while subprocess.run(self.hosts.command(self.host, sys.executable, "-c", HEALTHY, f"http://{self.address}:{self.client}"),
                             capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"etcd does not start: {(self.data / 'log').read_text()}")
            time.sleep(0.05)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
