"""The instruction set of the CPU's kernels with the real binary: the job's key, and a limit of oneDNN."""

import socket
import unittest

from support import *


@sliced(4)
class Isa(RunTest):
    def train(self, name, *settings, limit=None):
        """Runs a job. Returns its steps, the environment recorded in its last checkpoint, and its output."""
        arguments = [word for setting in ("steps=12", *settings) for word in ("--set", setting)]
        output = self.run_job(self.job(name), *arguments, env=self.limited(limit))
        return self.steps(name), self.environment(name), output

    @staticmethod
    def limited(isa):
        return {**os.environ, "ONEDNN_MAX_CPU_ISA": isa} if isa else dict(os.environ)

    def environment(self, name):
        return json.loads((self.checkpoints(name)[-1] / "manifest.json").read_text())["environment"]

    def test_a_job_limited_to_avx2_has_the_same_bits_every_time_and_the_usual_losses_to_rounding(self):
        self.train("usual", "precision=fp32")
        _, environment, output = self.train("first", "precision=fp32", "isa=avx2")
        self.train("again", "precision=fp32", "isa=avx2")
        self.assertEqual(environment["isa"], "avx2")
        self.assertIn("avx2 kernels, oneDNN", output)
        self.assertEqual(self.losses("first"), self.losses("again"))
        # Another order of fp32 sums: the bound of layouts_test.py.
        for (step, a), (_, b) in zip(self.losses("first"), self.losses("usual"), strict=True):
            self.assertAlmostEqual(float(a), float(b), delta=2e-5 * float(a), msg=f"step {step}")

    def test_no_product_runs_the_reference_implementation_whatever_onednn_may_use(self):
        for limit in ("SSE41", "AVX2", "AVX512_CORE", None):
            for precision in ("fp32", "bf16"):
                with self.subTest(limit=limit, precision=precision):
                    steps, _, output = self.train(f"{limit}-{precision}", f"precision={precision}", limit=limit)
                    self.assertEqual(steps[-1]["reference_gemms"], 0)
                    self.assertNotIn("reference implementation", output)

    def test_with_onednn_limited_to_avx2_so_are_our_kernels_and_bf16_computes_in_fp32_and_counts_it(self):
        fp32, environment, _ = self.train("fp32", "precision=fp32", limit="AVX2")
        bf16, _, _ = self.train("bf16", "precision=bf16", limit="AVX2")
        self.assertEqual((environment["isa"], environment["bf16_gemm"]), ("avx2", "false"))
        self.assertEqual(fp32[-1]["widened_gemms"], 0)
        self.assertGreater(bf16[0]["widened_gemms"], 0)
        self.assertEqual(bf16[-1]["widened_gemms"] - bf16[-2]["widened_gemms"], bf16[1]["widened_gemms"] - bf16[0]["widened_gemms"])

    def test_an_instruction_set_that_the_cpu_may_not_use_is_refused_with_what_it_has(self):
        output = self.run_job(self.job(), "--set", "isa=avx2", env=self.limited("SSE41"), status=8)
        self.assertIn("isa: the job asks for avx2, and this CPU, as oneDNN may use it, has portable: set isa: auto", output)

    def test_nodes_compute_with_the_instruction_set_that_all_have(self):
        layout = ("precision=fp32", "parallel.dp=2", "batch.micro=1")
        self.train("one", *layout, "isa=avx2")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        job = self.job("two")
        arguments = [word for setting in ("steps=12", *layout) for word in ("--set", setting)]
        agents = [self.start(job, "--nodes", "2", "--node", str(node), "--rendezvous", f"127.0.0.1:{port}", *arguments,
                             env=self.limited("AVX2" if node == 1 else None)) for node in (0, 1)]
        outputs = [agent.communicate(timeout=120)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], "\n----\n".join(outputs))
        for output in outputs:
            self.assertIn("avx2 kernels, oneDNN", output)
        self.assertEqual(self.losses("two"), self.losses("one"))


if __name__ == "__main__":
    unittest.main()
