"""Layouts as real processes: each gives one rank's losses, resumes checkpoints of any layout, and ends if a rank dies."""

import re
import unittest

from support import *

FLAGS = {
    "one": [],
    "dp2": ["parallel.dp=2"],
    "dp2-zero0": ["parallel.dp=2", "parallel.zero=0"],
    "tp2": ["parallel.tp=2"],
    "tp4": ["parallel.tp=4"],
    "pp2": ["parallel.pp=2", "batch.micro=1"],
    "pp2-gpipe": ["parallel.pp=2", "batch.micro=1", "parallel.schedule=gpipe"],
    "pp2-zb": ["parallel.pp=2", "batch.micro=1", "parallel.schedule=zb-h1"],
    "pp4": ["parallel.pp=4", "batch.micro=1"],
    "pp2-interleaved": ["parallel.pp=2", "batch.micro=1", "parallel.schedule=interleaved", "parallel.virtual_stages=2"],
    "pp2-zb-v": ["parallel.pp=2", "batch.micro=1", "parallel.schedule=zb-v", "parallel.virtual_stages=2"],
    "tp2-sp": ["parallel.tp=2", "parallel.sequence_parallel=true"],
    "tp2-sp-overlap": ["parallel.tp=2", "parallel.sequence_parallel=true", "parallel.tp_overlap_chunks=2"],
    "tp2-sp-full": ["parallel.tp=2", "parallel.sequence_parallel=true", "recompute={kind: full}"],
    "tp2-dp2": ["parallel.tp=2", "parallel.dp=2", "batch.micro=1"],
    "dp2-zero2": ["parallel.dp=2", "parallel.zero=2", "batch.micro=1"],
    "pp4-zero3": ["parallel.pp=4", "parallel.zero=3", "batch.micro=1"],
    "dp4-zero3": ["parallel.dp=4", "parallel.zero=3", "batch.micro=1"],
    "hybrid-zero3": ["parallel.dp=4", "parallel.zero=3", "parallel.zero_group=2", "batch.micro=1"],
    "tp2-dp2-zero3": ["parallel.tp=2", "parallel.dp=2", "parallel.zero=3", "batch.micro=1"],
    "cp2": ["parallel.cp=2"],
    "cp4-gather": ["parallel.cp=4", "parallel.cp_comm=all_gather", "parallel.zero=2"],
    "cp2-tp2-dp2": ["parallel.cp=2", "parallel.tp=2", "parallel.sequence_parallel=true", "parallel.dp=2", "parallel.zero=3", "batch.micro=1"],
    # Behind a dense layer, beside a shared MLP, with biases that move far enough to change choices.
    **{"experts" + name: ["model.experts={count: 4, per_token: 2, ffn: 32, shared_ffn: 64, dense_layers: 1, score: sigmoid, bias: true, scale: 2.5}",
                          "model.layers=4", "optimizer.expert_bias_rate=0.02", "loss.expert_balance=0.01", "batch.micro=1", *flags] for name, flags in {
        "": [],
        "-ep2": ["parallel.dp=2", "parallel.ep=2"],
        "-ep4-zero3": ["parallel.dp=4", "parallel.ep=4", "parallel.zero=3"],
        "-ep2-zero2": ["parallel.dp=4", "parallel.ep=2", "parallel.zero=2"],
        "-ep2-tp2-pp2": ["parallel.dp=2", "parallel.ep=2", "parallel.tp=2", "parallel.sequence_parallel=true", "parallel.pp=2", "parallel.schedule=zb-h1"],
        "-ep2-cp2": ["parallel.cp=2", "parallel.ep=2", "recompute={kind: full}"],
        "-tp2": ["parallel.tp=2"],
    }.items()},
    "all": ["parallel.tp=2", "parallel.pp=2", "parallel.dp=2", "batch.micro=1"],
}


def arguments(name, *more):
    out = []
    for flag in [*FLAGS[name], *more]:
        out += ["--set", flag]
    return out


class LayoutTest(RunTest):
    def curve(self, name):
        return [(s["step"], s["loss"]) for s in self.steps(name)]

    def assert_same_curve(self, name, reference):
        a, b = self.curve(name), self.curve(reference)
        self.assertEqual([s for s, _ in a], [s for s, _ in b])
        # Single precision with other orders of sums: tests/core/train/layouts_test.cpp derives the bound.
        for (step, x), (_, y) in zip(a, b):
            self.assertAlmostEqual(x, y, delta=2e-5 * y, msg=f"{name} step {step}")

    def assert_ledger(self, name):
        """The ledger sums to the step, and an axis of one rank costs nothing."""
        sizes = {axis: 1 for axis in ("tp", "cp", "ep", "pp", "dp")}
        for flag in FLAGS[name]:
            axis, value = re.match(r"parallel\.(\w+)=(.*)", flag).groups() if flag.startswith("parallel.") else ("", "")
            if axis in sizes:
                sizes[axis] = int(value)
        steps = self.steps(name)
        for step in steps:
            self.assertAlmostEqual(sum(step["time"].values()), step["step_seconds"], delta=1e-6)
        sizes["dp"] *= sizes["cp"]  # both sum gradients
        for part, axis in [("exposed_tp", "tp"), ("exposed_cp", "cp"), ("exposed_ep", "ep"), ("exposed_dp", "dp"), ("exposed_pp", "pp"), ("bubble", "pp")]:
            with self.subTest(part):
                compare = self.assertGreater if sizes[axis] > 1 else self.assertEqual
                compare(sum(step["time"][part] for step in steps), 0)


@sliced(6)
class Layouts(LayoutTest):
    @always
    def test_every_layout_gives_the_losses_of_one_rank(self):
        steps = "steps=24" if FULL else "steps=12"
        self.run_job(self.job("one"), *arguments("one", "precision=fp32", steps))
        for name in FLAGS:
            if name != "one" and not name.startswith("experts"):
                with self.subTest(name):
                    self.run_job(self.job(name), *arguments(name, "precision=fp32", steps))
                    self.assert_same_curve(name, "one")
                    self.assert_ledger(name)

    def test_experts_give_the_losses_of_one_rank(self):
        self.run_job(self.job("experts"), *arguments("experts", "precision=fp32"))
        for name in FLAGS:
            if name.startswith("experts-"):
                with self.subTest(name):
                    self.run_job(self.job(name), *arguments(name, "precision=fp32"))
                    self.assert_same_curve(name, "experts")
                    self.assert_ledger(name)
        # What one of them saved another goes on from.
        job = self.job("moved")
        for name, stop in [("experts-ep2-tp2-pp2", 3), ("experts-ep2-zero2", 6), ("experts-ep4-zero3", 9), ("experts-tp2", 12), ("experts-ep2-cp2", 15), ("experts", 24)]:
            output = self.run_job(job, *arguments(name, "precision=fp32"), "--stop-after", str(stop))
            self.assertIn(self.last_step("moved"), range(stop, 24) if stop < 24 else [24], output)
        self.assert_same_curve("moved", "experts")

    def test_crowded_experts_end_the_run_and_more_memory_goes_on(self):
        few = ["parallel.dp=4", "parallel.ep=4", "model.experts.count=4", "model.experts.per_token=1", "model.experts.normalise=false", "batch.micro=1"]
        job = self.job("crowded")
        words = [word for flag in few for word in ("--set", flag)]
        output = self.run_job(job, *words, "--set", "parallel.ep_capacity=1", status=3)
        self.assertIn("more tokens chose the experts of a rank than parallel.ep_capacity 1 has memory for, and nothing was updated", output)
        self.run_job(job, *words)
        self.assertEqual(self.last_step("crowded"), 24)

    def test_a_traced_step_is_one_file_whose_slices_add_up_to_the_ledger(self):
        # Step 5 saves in the foreground, and step 6 begins with the wait for the save.
        output = self.run_job(self.job("traced"), *arguments("all", "trace.steps=[2, 5, 6]", "checkpoint.async=false"))
        self.assertIn("the trace of step 5 is", output)
        files = sorted((self.root / "traced" / "traces").iterdir())
        self.assertEqual([f.name for f in files], [f"step-0000000{n}.json" for n in (2, 5, 6)])
        for path, number in zip(files, (2, 5, 6)):
            events = json.loads(path.read_text())["traceEvents"]
            slices = [e for e in events if e["ph"] == "X"]
            self.assertEqual({e["pid"] for e in slices}, set(range(8)))
            self.assertEqual([e["args"]["name"] for e in events if e["name"] == "process_name"], [f"rank {r}" for r in range(8)])
            step = self.steps("traced")[number - 1]
            self.assertEqual(step["step"], number)
            for rank in range(8):
                own = [e for e in slices if e["pid"] == rank]
                end = own[0]["ts"]
                for e in own:  # without a gap or an overlap
                    self.assertAlmostEqual(e["ts"], end, delta=0.01)
                    end = e["ts"] + e["dur"]
                for kind in ("forward", "backward"):
                    self.assertEqual({e["args"]["microbatch"] for e in own if e["name"] == kind}, {0, 1})
            for part, seconds in step["time"].items():  # of rank 0
                traced = sum(e["dur"] for e in slices if e["pid"] == 0 and e["cat"] == part)
                self.assertAlmostEqual(traced * 1e-6, seconds, delta=2e-6, msg=part)
            self.assertEqual(step["time"]["checkpoint"] > 0, number != 2)

    def test_what_one_layout_saved_another_resumes(self):
        self.run_job(self.job("whole"), *arguments("one", "precision=fp32"))
        # One output directory, another layout after every stop.
        job = self.job("moved")
        # A stop comes some steps late if steps take milliseconds, so the fastest layout is the last.
        for name, stop in [("all", 3), ("pp4-zero3", 6), ("dp4-zero3", 9), ("tp4", 12), ("hybrid-zero3", 15), ("cp2-tp2-dp2", 17), ("all", 18), ("one", 24)]:
            output = self.run_job(job, *arguments(name, "precision=fp32"), "--stop-after", str(stop))
            self.assertIn(self.last_step("moved"), range(stop, 24) if stop < 24 else [24], output)
            if stop > 3:
                self.assertIn("resuming from", output)
        self.assert_same_curve("moved", "whole")

    def checkpoint(self, *words, status=0):
        done = subprocess.run([BINARY, "checkpoint", *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def reshard(self, source, name, out, status=0):
        # All keys of the layout are set: those of the saved layout go back to their defaults.
        default = ["parallel.tp=1", "parallel.cp=1", "parallel.pp=1", "parallel.dp=1", "parallel.zero=1", "parallel.zero_group=0", "parallel.schedule=1f1b",
                   "parallel.virtual_stages=1", "parallel.sequence_parallel=false", "batch.micro=2"]
        words = []
        for flag in default + FLAGS[name]:
            words += ["--set", flag]
        return self.checkpoint("reshard", source, "--out", out, *words, status=status)

    def boxes(self, checkpoint):
        """The boxes of each shard."""
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        return sorted((s["name"], s["shard"], s["begin"], s["shape"]) for s in manifest["slices"])

    def test_a_checkpoint_resharded_is_what_the_other_layout_saves_and_goes_on_from(self):
        self.run_job(self.job("whole"), *arguments("all", "precision=fp32", "steps=8"))
        whole = self.root / "whole"
        source = whole
        # From each layout to the next and back. Each equals what a run of that layout saves after one step.
        for name in ("pp4-zero3", "dp4-zero3", "tp4", "hybrid-zero3", "one", "pp2-interleaved", "pp2-zb-v", "tp2-dp2-zero3", "cp2-tp2-dp2", "all"):
            with self.subTest(name):
                out = self.root / name / "checkpoints" / "step-00000008"
                self.assertIn("step 8", self.reshard(source, name, out))
                self.assertIn("equal, bit for bit", self.checkpoint("diff", whole, out))
                self.checkpoint("verify", out)
                source = out
                if FULL or name in ("pp4-zero3", "hybrid-zero3", "all"):
                    output = self.run_job(self.job(name), *arguments(name, "precision=fp32", "steps=9", "checkpoint.keep=2"))
                    self.assertIn("resuming from", output)
                    self.assertEqual(self.boxes(self.checkpoints(name)[-1]), self.boxes(out))
        shutil.copytree(whole / "checkpoints", self.root / "direct" / "checkpoints")
        self.run_job(self.job("direct"), *arguments("all", "precision=fp32", "steps=9"))
        self.assertEqual(self.losses("all"), self.losses("direct")[-1:])
        # Differences are reported with the first and the largest.
        text = self.checkpoint("diff", whole, self.root / "direct", status=1)
        self.assertRegex(text, r"\d+ of \d+ tensors differ\nfirst    \S+: \d+ of \d+ elements differ, by at most \S+ at \[[\d, ]+\], relative error \S+\n"
                               r"largest  \S+: ")
        self.assertIn("equal within", self.checkpoint("diff", whole, self.root / "direct", "--tolerance", "1e9"))
        found = json.loads(self.checkpoint("diff", whole, self.root / "direct", "--json", status=1))
        self.assertEqual(found["tensors"], len({box[0] for box in self.boxes(out)}))
        # The mean of two checkpoints lies between them; the mean of one with itself is the same.
        mean = self.root / "mean"
        self.checkpoint("merge", whole, self.root / "direct", "--out", mean)
        error = max(d["relative"] for d in json.loads(self.checkpoint("diff", whole, mean, "--json", status=1))["different"]
                    if d["name"] == "embed.weight")
        whole_error = max(d["relative"] for d in found["different"] if d["name"] == "embed.weight")
        self.assertAlmostEqual(error, whole_error / 2, delta=1e-6)
        self.checkpoint("merge", whole, whole, whole, "--out", self.root / "same")
        self.checkpoint("diff", whole, self.root / "same")
        # Invalid requests are refused and leave no files.
        refused = self.root / "refused"
        self.assertIn("another layout alone", self.checkpoint("reshard", whole, "--out", refused, "--set", "seed=8", status=2))
        self.assertIn("heads", self.checkpoint("reshard", whole, "--out", refused, "--set", "parallel.tp=3", status=2))
        self.assertIn("exists already", self.reshard(whole, "one", mean, status=5))
        self.checkpoint("diff", whole, status=2)
        self.checkpoint("diff", whole, refused, status=5)
        shard = sorted(out.glob("*.safetensors"))[0]
        shard.write_bytes(shard.read_bytes()[:-1])
        self.assertIn(shard.name, self.reshard(out, "one", refused, status=5))
        self.assertEqual(list(self.root.glob("refused*")), [])

    def test_checkpoints_of_many_ranks_are_listed_shown_and_verified(self):
        self.run_job(self.job("all"), *arguments("all", "precision=fp32"))

        ask = self.checkpoint
        listed = ask("list", self.root / "all")
        self.assertEqual(re.findall(r"step (\d+)", listed.replace("step-", "")), ["24", "20", "15"])
        newest = self.checkpoints("all")[-1]
        self.assertIn("8 shards", ask("verify", newest))
        shown = ask("show", newest)
        # Logical shapes, whatever the layout: two layers of hidden 64, heads 4 + 2 x 2 of size 16.
        self.assertRegex(shown, r"layers\.1\.qkv\.weight +fp32 +128 x 64")
        self.assertRegex(shown, r"optimizer\.moment2\.embed\.weight +fp32 +256 x 64")
        shard = sorted(newest.glob("*.safetensors"))[3]
        with shard.open("r+b") as f:
            f.seek(shard.stat().st_size - 9)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        self.assertIn(shard.name, ask("verify", newest, status=5))
        self.assertIn("no/such", ask("list", "no/such", status=5))

    def test_a_resumed_layout_of_many_ranks_goes_on_bit_for_bit(self):
        self.run_job(self.job("whole"), *arguments("all"))
        job = self.job("killed")
        process = self.start(job, *arguments("all"))
        self.wait_for_step(process, 8, "killed")
        self.wait_for_checkpoint(process, "killed")
        process.kill()
        process.communicate()
        self.run_job(job, *arguments("all"))
        self.assertEqual(self.losses("killed"), self.losses("whole"))

    def test_muon_goes_on_bit_for_bit_on_its_layout_and_to_rounding_on_others(self):
        muon = ["precision=fp32", "optimizer.name=muon", "optimizer.lr=2e-2", "optimizer.adamw_lr=1e-3"]
        self.run_job(self.job("whole", schedule=CONSTANT), *arguments("tp2-dp2-zero3", *muon))
        job = self.job("parts", schedule=CONSTANT)
        self.run_job(job, *arguments("tp2-dp2-zero3", *muon, "steps=11"))
        self.run_job(job, *arguments("tp2-dp2-zero3", *muon))
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        job = self.job("moved", schedule=CONSTANT)
        for name, steps in [("all", 6), ("one", 11), ("hybrid-zero3", 17), ("tp4", 24)]:
            self.run_job(job, *arguments(name, *muon, f"steps={steps}"))
        self.assert_same_curve("moved", "whole")
        output = self.run_job(job, *arguments("tp4", "precision=fp32", "steps=30"), status=5)
        self.assertIn("optimizer.name: the checkpoint has muon, the job adamw", output)

    def test_any_dead_rank_is_named_and_no_other_rank_hangs(self):
        for victim in range(4):
            name = f"victim{victim}"
            process = self.start(self.job(name), *arguments("tp2-dp2", "steps=100000", "restarts=0"))
            self.wait_for_step(process, 3, name)
            workers = self.children(process.pid)
            self.assertEqual(len(workers), 4)
            os.kill(workers[victim], signal.SIGKILL)
            output, _ = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 7, output)
            self.assertRegex(output, rf"rank {victim} \(pid {workers[victim]}\) ended by signal 9")
            for pid in workers:
                self.assertFalse(alive(pid))

    def test_an_error_of_one_rank_is_the_one_reported(self):
        process = self.start(self.job("data"), *arguments("tp2-dp2", "steps=100000"))
        self.wait_for_step(process, 3, "data")
        os.truncate(self.data, 100)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 4, output)
        self.assertIn("data.txt", output)

    def test_a_stop_is_a_vote_of_all_ranks(self):
        process = self.start(self.job("stopped"), *arguments("all", "steps=100000"))
        self.wait_for_step(process, 3, "stopped")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        last = self.steps("stopped")[-1]["step"]
        self.assertEqual(self.checkpoints("stopped")[-1].name, f"step-{last:08d}")

    def test_a_gradient_that_is_not_finite_is_named_by_the_rank_that_has_it(self):
        job = self.job("diverged", lr="1.0e+30", schedule=CONSTANT)
        output = self.run_job(job, *arguments("all", "checkpoint.every=1"), status=6)
        self.assertRegex(output, r"step \d+: the (loss|gradient of \S+) is not finite")


class LayoutsOnCuda(LayoutTest):
    """Ranks as processes that share the machine's CUDA devices with `staged`. Skipped with a reason if there is none."""

    NAMES = ["dp2", "tp2-sp", "pp2-zb", "dp4-zero3", "all"]
    ON_CUDA = ["device=cuda", "cluster.communication=staged", "precision=fp32"]

    def setUp(self):
        super().setUp()
        asked = subprocess.run([BINARY, "run", self.job("asked"), "--set", "device=cuda"], capture_output=True, text=True)
        if asked.returncode == 8:
            self.skipTest("no GPU: " + asked.stderr.strip())

    def test_every_layout_gives_the_losses_of_one_rank(self):
        self.run_job(self.job("one"), *arguments("one", *self.ON_CUDA))
        for name in self.NAMES:
            with self.subTest(name):
                self.run_job(self.job(name), *arguments(name, *self.ON_CUDA))
                self.assert_same_curve(name, "one")
                self.assert_ledger(name)

    def test_ranks_that_share_a_device_unasked_are_refused(self):
        output = self.run_job(self.job("unasked"), *arguments("one", "device=cuda", "parallel.dp=64", "batch.global=64", "batch.micro=1"), status=3)
        self.assertIn("cluster.communication to staged", output)

    def test_any_dead_rank_is_named_and_no_other_rank_hangs(self):
        process = self.start(self.job("victim"), *arguments("tp2-dp2", "steps=100000", "restarts=0", *self.ON_CUDA))
        self.wait_for_step(process, 3, "victim")
        workers = self.children(process.pid)
        os.kill(workers[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 7, output)
        self.assertRegex(output, rf"rank 1 \(pid {workers[1]}\) ended by signal 9")


if __name__ == "__main__":
    unittest.main(verbosity=2)
