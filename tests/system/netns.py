"""Several hosts on one machine: network namespaces, each connected to a switch by a virtual cable that a test can cut.

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN, and `ip` (deploy/install-deps.sh --tests). Without CAP_NET_ADMIN `Hosts.possible()` is False,
all hosts are this one, and links cannot be cut. Anything else that is missing fails the test."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
FETCH = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
SPAN = 0  # number of Hosts objects made by this process


def capable():
    text = pathlib.Path("/proc/self/status").read_text()
    held = int(next(line for line in text.splitlines() if line.startswith("CapEff")).split()[1], 16)
    return all(held >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN))


class Hosts:
    @staticmethod
    def possible():
        return capable()

    def __init__(self, count):
        global SPAN
        SPAN += 1
        self.apart = self.possible()
        self.names = [f"host{i}" for i in range(count)]
        self.processes = [[] for _ in range(count)]
        self.prefix = f"td{os.getpid()}x{SPAN}"
        if not self.apart:
            print("no CAP_NET_ADMIN here: the hosts are this one, and no link is cut", file=sys.stderr)
            return
        if shutil.which("ip") is None:
            raise RuntimeError("`ip` is missing: deploy/install-deps.sh --tests installs iproute2")
        try:
            self._ip("netns", "add", self._switch())
            self._in(self._switch(), "link", "add", "switch", "type", "bridge")
            self._in(self._switch(), "link", "set", "switch", "up")
            for i in range(count):
                self._ip("netns", "add", self._space(i))
                self._in(self._space(i), "link", "set", "lo", "up")
                self._in(self._space(i), "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self._switch())
                self._in(self._space(i), "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                self._in(self._space(i), "link", "set", "eth0", "up")
                self._in(self._switch(), "link", "set", f"port{i}", "up")
                self.restore(i)
        except Exception:
            self.close()
            raise

    def address(self, host):
        return f"10.77.0.{host + 1}" if self.apart else "127.0.0.1"

    def command(self, host, *words):
        """The command that runs `words` on the host; the started process becomes the program's own."""
        if not self.apart:
            return list(words)
        return ["ip", "netns", "exec", self._space(host), "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.names[host],
                *words]

    def add(self, host, process):
        self.processes[host].append(process)

    def cut(self, host):
        """Disconnects the host at the switch: packets in both directions are lost, and neither side is notified."""
        self._in(self._switch(), "link", "set", f"port{host}", "nomaster")

    def restore(self, host):
        self._in(self._switch(), "link", "set", f"port{host}", "master", "switch")

    def pids(self, host):
        """Pids of all processes of the host."""
        if self.apart:
            return [int(pid) for pid in self._ip("netns", "pids", self._space(host)).split()]
        found = []
        for process in self.processes[host]:
            if process.poll() is None:
                found += [process.pid, *children(process.pid)]
        return found

    def signal(self, host, signum):
        """Sends a signal to all processes of the host, twice, to include processes that were started meanwhile."""
        for _ in range(2):
            for pid in self.pids(host):
                try:
                    os.kill(pid, signum)
                except ProcessLookupError:
                    pass

    def metrics(self, host, address):
        command = self.command(host, sys.executable, "-c", FETCH, f"http://{address}/metrics")
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def close(self):
        for i in range(len(self.names)):
            try:
                self.signal(i, signal.SIGKILL)
            except RuntimeError:
                pass
        if self.apart:
            for space in [*(self._space(i) for i in range(len(self.names))), self._switch()]:
                subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def _space(self, host):
        return f"{self.prefix}-{host}"

    def _switch(self):
        return f"{self.prefix}-switch"

    def _in(self, space, *words):
        return self._ip("-n", space, *words)

    @staticmethod
    def _ip(*words):
        result = subprocess.run(["ip", *words], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"`ip {' '.join(words)}` failed: {result.stderr.strip()}. This process has CAP_NET_ADMIN, so hosts can be made "
                               "here: see whether the kernel has veth and bridge (modprobe), or drop the capability to go without")
        return result.stdout


def children(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
