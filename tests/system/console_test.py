"""What `trainerd run` shows, and that nobody needs to look at it."""

import fcntl
import pty
import re
import unittest

from support import *


class Unread(RunTest):
    """Output that nobody reads."""

    # Hundreds of bytes a step, from an evaluation and a checkpoint each.
    TALKATIVE = ("--set", "steps=100000", "--set", "evaluate.every=1", "--set", "checkpoint.every=1")

    def start_into(self, descriptor, job, *args):
        process = subprocess.Popen([BINARY, "run", job, *args], stdout=descriptor, stderr=descriptor)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(descriptor)
        return process

    def full_pipe(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        return read_end, write_end

    def check_that_it_trains_and_stops(self, process):
        self.wait_for_step(process, 100)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 143)
        self.assertEqual(self.checkpoints()[-1].name, f"step-{self.steps()[-1]['step']:08d}")

    def test_a_full_pipe_stops_neither_training_nor_its_end(self):
        read_end, write_end = self.full_pipe()
        process = self.start_into(write_end, self.job(), *self.TALKATIVE)
        self.check_that_it_trains_and_stops(process)
        self.assertFalse(fcntl.fcntl(read_end, fcntl.F_GETFL) & os.O_NONBLOCK)

    def test_a_stopped_terminal_stops_neither_training_nor_its_end(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        os.write(master, b"\x13")  # Ctrl-S
        self.check_that_it_trains_and_stops(self.start_into(slave, self.job(), *self.TALKATIVE))

    def test_an_error_is_not_held_up_by_a_full_pipe(self):
        _, write_end = self.full_pipe()
        os.write(write_end, b"x" * 4096)
        process = self.start_into(write_end, self.job(lr="1.0e+30", schedule=CONSTANT), "--set", "checkpoint.every=1")
        self.assertEqual(process.wait(timeout=60), 6)

    def test_with_closed_standard_streams_no_file_gets_the_log(self):
        process = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', BINARY, "run", self.job()], timeout=120)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(self.steps()), 24)
        output = self.root / "a"
        self.assertEqual((output / ".lock").read_bytes(), b"")
        for path in (p for p in output.rglob("*") if p.is_file() and p.name != "run.log"):
            self.assertNotIn(b"/metrics\n", path.read_bytes(), path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
