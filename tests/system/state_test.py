"""State is never lost: kills at random moments, damage of any file, large states on other layouts. `tests/run.sh full` does the
full counts; other runs do a part chosen by a seed."""

import pathlib
import re
import unittest

from support import *

STEPS = 60
KILLED = ["--set", f"steps={STEPS}", "--set", "checkpoint={every: 4, keep: 3}", "--set", "evaluate.every=30", "--set", "restarts=1000"]
SEED = 15


def tensors(checkpoint):
    return {p.name: p.read_bytes() for p in sorted(checkpoint.glob("*.safetensors"))}


class StateTest(RunTest):
    def whole(self, *args):
        """The losses of an undisturbed run of the same job."""
        if not self.steps("whole"):
            self.run_job(self.job("whole", schedule=CONSTANT), *KILLED, *args)
        return self.losses("whole")

    def assert_as_whole(self, name, *args):
        self.assertEqual(self.losses(name), self.whole(*args))
        self.assertEqual(tensors(self.checkpoints(name)[-1]), tensors(self.checkpoints("whole")[-1]))


@sliced(6)
class Kills(StateTest):
    def test_kills_at_random_moments_lose_nothing(self):
        layout = ["--set", "parallel.dp=2"]
        begin = time.monotonic()
        self.whole(*layout)
        seconds = time.monotonic() - begin
        chance = random.Random(SEED)
        kills, runs, starts = {"agent": 0, "worker": 0, "all": 0}, 0, 0
        while sum(kills.values()) < (200 if FULL else 5):
            name = f"killed-{runs}"
            runs += 1
            job = self.job(name, schedule=CONSTANT)
            for _ in range(4):
                process = self.start(job, *KILLED, *layout)
                starts += 1
                time.sleep(chance.uniform(0, 0.8 * seconds))
                who = chance.choice(sorted(kills))
                if process.poll() is not None:
                    break
                try:
                    workers = self.children(process.pid)
                    if who == "worker" and workers:
                        os.kill(chance.choice(workers), signal.SIGKILL)
                    elif who == "worker":
                        process.kill()  # before there were workers
                    else:
                        process.kill()
                        for worker in workers if who == "all" else []:
                            os.kill(worker, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                else:
                    kills[who] += 1
                if who == "worker":  # the run continues for a while
                    time.sleep(chance.uniform(0, 0.5 * seconds))
                    process.kill()
                process.communicate()
            output = self.run_job(job, *KILLED, *layout)
            self.assert_as_whole(name, *layout)
            for checkpoint in self.checkpoints(name):
                self.assertEqual(subprocess.run([BINARY, "checkpoint", "verify", checkpoint], capture_output=True).returncode, 0)
            # A removal that a kill interrupted after the last checkpoint would be completed by the next save, but there is none.
            left = [p for p in (self.root / name / "checkpoints").iterdir() if p not in self.checkpoints(name)]
            removals = [p for p in left if (p / "manifest.json").exists() and p < self.checkpoints(name)[-1]]
            self.assertEqual(left, removals if "steps are done already" in output else [], self.events(name)[-30:])
            shutil.rmtree(self.root / name)
        print(f"kills: {kills}, runs: {runs}, starts: {starts + runs}", flush=True)


@sliced(6)
class Damage(StateTest):
    def test_one_bit_anywhere_is_found_named_and_survived(self):
        self.whole()
        source = self.root / "source"
        self.run_job(self.job("source", schedule=CONSTANT), *KILLED, "--set", "steps=40")
        chance = random.Random(SEED)
        for number in range(60 if FULL else 5):
            shutil.rmtree(self.root / "damaged", ignore_errors=True)
            shutil.copytree(source, self.root / "damaged")
            newest = self.checkpoints("damaged")[-1]
            file = chance.choice(sorted(p for p in newest.iterdir() if p.stat().st_size))
            content = bytearray(file.read_bytes())
            what = chance.choice(["flip", "flip", "flip", "cut", "gone"])
            at = chance.randrange(len(content))
            with self.subTest(file=file.name, what=what, at=at):
                if what == "flip":
                    content[at] ^= 1 << chance.randrange(8)
                    file.write_bytes(content)
                elif what == "cut":
                    file.write_bytes(content[:at])
                else:
                    file.unlink()
                incomplete = file.name == "COMPLETE" and what != "flip"
                if not incomplete:
                    verified = subprocess.run([BINARY, "checkpoint", "verify", newest], capture_output=True, text=True)
                    self.assertEqual(verified.returncode, 5)
                    self.assertIn(file.name if file.name != "COMPLETE" else "manifest.json", verified.stderr)
                output = self.run_job(self.job("damaged", schedule=CONSTANT), *KILLED)
                self.assertRegex(output, f"checkpoint {newest} " + ("will not be used: it has no file COMPLETE" if incomplete else "is damaged"))
                self.assertIn("resuming from " + str(newest.parent / "step-00000036"), output)
                self.assert_as_whole("damaged")


@sliced(6)
class Cadence(StateTest):
    def test_the_newest_good_checkpoint_waits_for_its_tag_and_stays(self):
        output = self.run_job(self.job(schedule=CONSTANT), "--set", "steps=60", "--set", "evaluate.every=0",
                              "--set", "checkpoint={every: 4, keep: 1, good_after: 20}")
        self.assertIn("the checkpoint of step 4 is good: the losses of 20 steps after it were in line", output)
        good = [p for p in self.checkpoints() if (p / "GOOD").exists()]
        self.assertEqual(len(good), 1, self.checkpoints())
        self.assertIn(good[0], self.checkpoints()[:-1])
        listed = subprocess.run([BINARY, "checkpoint", "list", self.root / "a"], capture_output=True, text=True, check=True).stdout
        self.assertEqual([line.endswith("  good") for line in listed.splitlines()], [p == good[0] for p in reversed(self.checkpoints())])

    def test_a_run_saves_as_often_as_is_worth_it(self):
        process = self.start(self.job(schedule=CONSTANT), "--set", "steps=100000", "--set", "evaluate.every=0",
                             "--set", "checkpoint={every: auto, mtbf: 2s}")
        line = self.read_until(process, "checkpoint.every: auto: every")
        self.assertIn("mean time between failures 2.0 s (checkpoint.mtbf)", line)
        self.wait_for(process, lambda: len(self.saves()) > 5, "six checkpoints by time")
        metrics = scrape(json.loads((self.root / "a" / "metrics.json").read_text())[0]["targets"][0])
        interval = float(re.search(r"(?m)^trainerd_checkpoint_interval_seconds (\S+)", metrics).group(1))
        self.assertTrue(0.01 < interval < 2, interval)
        self.assertIn('trainerd_mtbf_seconds{source="given"} 2', metrics)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143)


# A chain of layouts, including sizes that do not divide.
CHAIN = [
    ["parallel.tp=2"],
    ["parallel.dp=3", "parallel.zero=3"],
    ["parallel.tp=2", "parallel.pp=2"],
    ["parallel.dp=5", "parallel.zero=1"],
    ["parallel.tp=4", "parallel.pp=2", "parallel.dp=2", "parallel.zero=2"],
    ["parallel.dp=16", "parallel.zero=3"],
    ["parallel.pp=3", "parallel.dp=3", "parallel.zero=3"],
    ["parallel.tp=8", "parallel.dp=2"],
    [],
]
DEFAULT = ["parallel.tp=1", "parallel.pp=1", "parallel.dp=1", "parallel.zero=1"]
MODEL = """
name: large
output: {output}
device: cpu
threads: 1
model: {{layers: {layers}, hidden: {hidden}, heads: 16, ffn: {ffn}, vocab: {vocab}, seq_len: 64, norm: rms, positions: rope, mlp: swiglu}}
precision: {{compute: fp32}}
steps: {steps}
batch: {{global: 48, micro: 1}}
optimizer: {{lr: 1.0e-4}}
data: {{format: text, tokenizer: bytes, train: "{data}"}}
checkpoint: {{every: 0}}
evaluate: {{every: 0}}
metrics: {{listen: "off"}}
"""


@sliced(6)
class Sizes(StateTest):
    def generated(self, name, steps=10, **sizes):
        """The job of a model, and a checkpoint of it on one rank with generated values."""
        job = self.root / f"{name}.yaml"
        job.write_text(MODEL.format(output=self.root / name, data=self.data, steps=steps, **sizes))
        checkpoint = self.root / name / "checkpoints" / "step-00000010"
        checkpoint.parent.mkdir(parents=True)
        environment = {**os.environ, "TRAINERD_STATE_JOB": str(job), "TRAINERD_STATE_OUT": str(checkpoint)}
        subprocess.run([os.environ["TRAINERD_TEST_CORE"], "[.make-state]"], check=True, env=environment, stdout=subprocess.DEVNULL)
        return job, checkpoint

    def checkpoint(self, *words):
        """Runs a `checkpoint` command. Returns its output and its peak memory in bytes."""
        process = subprocess.Popen([BINARY, "checkpoint", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        self.assertEqual(process.returncode, 0, output)
        return output, usage.ru_maxrss * 1024

    def test_a_state_goes_through_many_layouts_bit_for_bit_in_little_memory(self):
        sizes = dict(layers=18, hidden=2048, ffn=5632, vocab=32000) if FULL else dict(layers=6, hidden=512, ffn=1408, vocab=8192)
        _, first = self.generated("large", **sizes)
        state = sum(p.stat().st_size for p in first.glob("*.safetensors"))
        self.assertGreater(state, 12e9 if FULL else 300e6)
        bound = 1.5e9 if FULL else 150e6  # less than the state: memory does not grow with the state
        source, most = first, 0
        for number, layout in enumerate(CHAIN if FULL else CHAIN[1:4]):
            out = self.root / f"chain-{number}"
            flags = [word for flag in DEFAULT + layout for word in ("--set", flag)]
            begin = time.monotonic()
            _, memory = self.checkpoint("reshard", source, "--out", out, *flags)
            seconds = time.monotonic() - begin
            most = max(most, memory)
            self.assertLess(memory, bound, layout)
            equal, memory = self.checkpoint("diff", first, out)
            self.assertIn("equal, bit for bit", equal)
            self.assertLess(memory, bound)
            print(f"{state / 1e9:.1f} GB to {layout}: {seconds:.0f} s, {most / 1e6:.0f} MB", flush=True)
            if source != first:
                shutil.rmtree(source)
            source = out

    def test_ranks_load_a_state_of_another_layout_in_the_memory_of_their_share(self):
        sizes = dict(layers=12, hidden=768, ffn=2048, vocab=16384) if FULL else dict(layers=6, hidden=384, ffn=1024, vocab=8192)
        job, first = self.generated("loaded", steps=12, **sizes)
        state = sum(p.stat().st_size for p in first.glob("*.safetensors"))
        largest = sizes["vocab"] * sizes["hidden"] * 4
        for number, layout in enumerate([["parallel.tp=2"], ["parallel.dp=3", "parallel.zero=3"]]):
            with self.subTest(layout=layout):
                output = self.root / f"ranks-{number}"
                shutil.copytree(first, output / "checkpoints" / first.name)
                flags = [word for flag in layout + [f"output={output}", "batch.global=12", "data.on_change=continue"] for word in ("--set", flag)]
                planned = json.loads(subprocess.run([BINARY, "plan", job, *flags, "--json"], capture_output=True, text=True, check=True).stdout)
                process = self.start(job, *flags)
                self.wait_for_step(process, 11, output.name, timeout=600)
                ranks = int(re.search(r"=(\d)", layout[0]).group(1))
                peaks = []
                for worker in self.children(process.pid):
                    status = pathlib.Path(f"/proc/{worker}/status").read_text()
                    peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024)
                process.communicate(timeout=600)
                self.assertEqual(process.returncode, 0)
                self.assertEqual(len(peaks), ranks)
                # Memory of a rank: its plan, its share of the state in two snapshots, and the process with its libraries.
                share = state / ranks
                bound = planned["memory"]["peak_bytes"] + 2 * share + largest + 150e6
                print(f"{state / 1e6:.0f} MB of state on {layout}: {max(peaks) / 1e6:.0f} MB a rank, bound {bound / 1e6:.0f} MB", flush=True)
                self.assertLess(max(peaks), bound)


if __name__ == "__main__":
    unittest.main(verbosity=2)
