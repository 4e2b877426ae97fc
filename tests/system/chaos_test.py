"""Random faults by a seed, several per run, from `faults` and from outside: every run finishes with the losses of the undisturbed
run, each sample counted once, and nothing left behind. Prints the cost of each kind of fault.

    TRAINERD_CHAOS_SEED=7 python3 tests/system/chaos_test.py        # that run again
    TRAINERD_CHAOS_FAULTS=100 python3 tests/system/chaos_test.py    # so many faults in all
    TRAINERD_CHAOS_AT_ONCE=1 ... # one run at a time: then the longest times are held against their limits too, not the medians alone"""

import concurrent.futures
import statistics
import threading
import unittest

from chaos_support import Driver, HANG, LAYOUTS, Plan, STEPS, costs, print_table, session
from nodes_test import free_port
from restart_test import RestartTest
from support import *

FIRST = int(os.environ.get("TRAINERD_CHAOS_FIRST", 63))  # seed
PER_RUN = 14 if FULL else 6
FAULTS = int(os.environ.get("TRAINERD_CHAOS_FAULTS", 1000 if FULL else 12))
AT_ONCE = int(os.environ.get("TRAINERD_CHAOS_AT_ONCE", 2))  # concurrent runs: most of a recovery is waiting


class Chaos(RestartTest):
    def setUp(self):
        super().setUp()
        self.lock = threading.Lock()
        self.references, self.making = {}, {}

    def reference(self, layout):
        """(step, loss, norm) of the undisturbed run."""
        with self.lock:
            making = self.making.setdefault(layout, threading.Lock())
        with making:
            if layout not in self.references:
                name = f"whole-{layout}"
                flags = [*LAYOUTS[layout][1], f"steps={STEPS}", "evaluate.every=0", "metrics.listen=off", "checkpoint.every=0"]
                self.run_job(self.job(name, schedule=CONSTANT), *(word for flag in flags for word in ("--set", flag)), timeout=600)
                self.references[layout] = self.curve(name)
            return self.references[layout]

    def curve(self, name):
        return [(s["step"], repr(s["loss"]), repr(s["grad_norm"])) for s in self.steps(name)]

    def one(self, seed):
        """Runs the plan of a seed. Returns the costs of its faults."""
        plan = Plan(seed, PER_RUN)
        name = f"seed-{seed}"
        self.job(name, schedule=CONSTANT)
        driver = Driver(self, plan, name, free_port())
        try:
            driver.run(600 if SANITIZED else 240)
            self.check(plan, driver, name)
            return costs(plan, driver, self.events(name))
        except BaseException as error:
            raise AssertionError(f"{error}\n{plan}\nagain: TRAINERD_CHAOS_SEED={seed} {'TRAINERD_FULL_TESTS=1 ' * FULL}tests/system/chaos_test.py\n"
                                 f"{driver.output()}") from error
        finally:
            driver.kill_all()
            driver.log.close()
            if "TRAINERD_CHAOS_KEEP" not in os.environ:
                shutil.rmtree(self.root / name, ignore_errors=True)
                shutil.rmtree(self.root / f"{name}-durable", ignore_errors=True)

    def check(self, plan, driver, name):
        curve, whole = self.curve(name), self.reference(plan.layout)
        same = plan.steps if plan.wrong_from is None else plan.wrong_from - 1
        self.assertEqual([step for step, _, _ in curve], list(range(1, plan.steps + 1)))
        self.assertEqual(curve[:same], whole[:same])
        self.assert_samples_once(name)
        kinds = {event["event"] for event in self.events(name)}
        if plan.hashes:
            flips = [f for f in plan.faults if f["kind"] in ("flip_parameter", "flip_gradient")]
            self.assertEqual("corruption" in kinds, bool(flips), flips)
        else:
            self.assertNotIn("corruption", kinds)
        done = (self.root / name / "faults-done").read_text().splitlines() if plan.inside() else []
        self.assertEqual(len(done), len(set(done)))
        # Nothing is left: processes, parts of files, a token.
        end = time.monotonic() + PATIENCE
        while left := [pid for agent in driver.pids for pid in session(agent)]:
            if time.monotonic() > end:
                self.fail(f"processes are left: {left}")
            time.sleep(0.02)
        folders = {p.name for p in (self.root / name / "checkpoints").iterdir()}
        self.assertEqual(folders, {p.name for p in self.checkpoints(name)})
        partial = [str(p) for p in (self.root / name).rglob("*") if p.name.endswith((".tmp", ".partial", ".new")) or p.name == ".token"]
        self.assertEqual(partial, [])

    def test_random_faults_lose_nothing_and_what_they_cost_is_printed(self):
        if "TRAINERD_CHAOS_SEED" in os.environ:
            seeds = [int(os.environ["TRAINERD_CHAOS_SEED"])]
        else:
            seeds = [FIRST + i for i in range(-(-FAULTS // PER_RUN))]
        found, failed = [], []
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {pool.submit(self.one, seed): seed for seed in seeds}
            for run in concurrent.futures.as_completed(runs):
                try:
                    found += run.result()
                except AssertionError as error:
                    failed.append(runs[run])
                    print(f"FAILED {error}", flush=True)
        print_table(found)
        self.assertEqual(failed, [])
        if not SANITIZED:
            self.check_deadlines(found)
        if FULL and len(found) > (300 if AT_ONCE > 1 else 100) and not SANITIZED:
            self.check_costs(found)

    def check_deadlines(self, found):
        """A hang is reported at most 1 s after its deadline, plus the time in which some process waited for a core (see
        promptly)."""
        late = []
        for kind, cost in found:
            if "over" in cost:
                most = 4 + 3 * cost["deadline"]
                allowed = most if cost["excused"] is None else min(1 + cost["excused"], most)
                if cost["over"] >= allowed:
                    late.append((kind, cost))
        self.assertEqual(late, [])

    def check_costs(self, found):
        """Bounds medians if two runs share two cores, else the longest times."""
        def of(kinds, key):
            values = [cost[key] for kind, cost in found if kind in kinds and key in cost]
            return max(values) if AT_ONCE == 1 else statistics.median(values)

        dead = ("kill", "crash", "SIGKILL worker", "SIGKILL two workers")
        stopped = ("stop", "SIGSTOP worker")  # a spinning one is judged by its CPU time, which is scarce here
        self.assertLess(of(dead, "detect"), 1)
        self.assertLess(of(stopped, "detect"), HANG + 1)
        self.assertLess(of(dead, "recover"), 3)
        self.assertLess(of(dead + stopped, "groups"), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
