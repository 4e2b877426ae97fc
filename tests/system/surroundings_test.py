"""Runs and their environment: the machine's devices, the job's directory, environment variables."""

import pathlib
import unittest

from support import *

STAND_IN_NVML = pathlib.Path(os.environ.get("TRAINERD_STAND_IN_NVML", BINARY.parent / "tests" / "stand_in" / "libnvidia-ml.so.1"))


# The agent cannot start threads while the file exists, as beyond a limit of processes; its workers can.
NO_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
  char name[16];
  prctl(PR_GET_NAME, name);
  if (strncmp(name, "trainerd:rank", 13) != 0 && access(getenv("NO_THREADS"), F_OK) == 0) return EAGAIN;
  return real(thread, attributes, run, argument);
}
"""


class Surroundings(RunTest):
    def validate(self, job, *args, **kwargs):
        return subprocess.run([BINARY, "validate", job, *args], capture_output=True, text=True, **kwargs)

    def test_an_automatic_dp_stays_that_of_the_checkpoint(self):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", "parallel.dp=2", "--set", "steps=6")
        # The cores of this machine alone would give another dp.
        resumed = self.run_job(job, "--set", "parallel.dp=auto", "--set", f"threads={os.cpu_count()}", "--set", "steps=7", status=0)
        self.assertIn("  dp: 2\n", (self.root / "a" / "job.yaml").read_text(), resumed)
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 8)))

    def test_a_relative_path_is_of_the_jobs_directory_and_the_resolved_job_runs_from_anywhere(self):
        job = self.job()
        job.write_text(job.read_text().replace(str(self.data), "data.txt").replace(f"output: {self.root}", "output: ${TRAINERD_TEST_RUNS}"))
        self.run_job(job, "--set", "steps=6", cwd="/", env={**os.environ, "TRAINERD_TEST_RUNS": str(self.root)})
        self.assertIn(f"train: [\"{self.data}\"]", (self.root / "a" / "job.yaml").read_text().replace(f"[{self.data}]", f"[\"{self.data}\"]"))
        self.run_job(self.root / "a" / "job.yaml", "--set", "output=" + str(self.root / "b"), cwd="/tmp")
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_gpus_that_cannot_be_used_are_a_line_and_the_cpu(self):
        if not STAND_IN_NVML.exists() or (BINARY.parent / "libtrainerd_cuda.so").exists() or SANITIZED:
            self.skipTest("needs the stand-in for NVML, and a build without CUDA")
        job = self.job()
        env = {**os.environ, "LD_LIBRARY_PATH": str(STAND_IN_NVML.parent)}
        automatic = self.validate(job, "--set", "device=auto", env=env)
        self.assertEqual(automatic.returncode, 0, automatic.stderr)
        self.assertIn("device: cpu\n", automatic.stdout)
        self.assertRegex(automatic.stderr, r"^trainerd: device: auto is the CPU: this machine has 2 GPUs that cannot be used: .*\n$")
        self.assertEqual(self.validate(job, env=env).stderr, "")

    def test_a_limit_on_threads_is_reported_and_loses_no_work(self):
        limit = self.root / "no-threads"
        environment = {**self.preloaded("threads", NO_THREADS), "NO_THREADS": str(limit)}
        limit.touch()
        output = self.run_job(self.job(), status=3, env=environment)
        self.assertIn("a thread could not be started: raise the limit on processes", output)
        limit.unlink()
        process = self.start(self.job(), "--set", "steps=100000", "--set", "checkpoint.every=0", "--set", "optimizer.schedule.kind=constant",
                             "--set", "optimizer.schedule.min_lr=0", env=environment)
        self.wait_for_step(process, 5)
        limit.touch()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertEqual(len(self.checkpoints()), 1)


if __name__ == "__main__":
    unittest.main()
