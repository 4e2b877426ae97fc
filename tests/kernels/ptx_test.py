"""The PTX of our kernels has 16-byte vector accesses and tensor core instructions where expected, and no atomics, whose order could
change a result.

usage: ptx_test.py PLUGIN     a libtrainerd_cuda.so with PTX for sm_90a, as in builds with tests (kernels/cuda/plugin.cmake)
"""

import pathlib
import re
import subprocess
import sys
import unittest

# Kernels that read vectors and write one or two values per block.
READERS = {"ce_stats_kernel", "block_square_sums_kernel", "hash_blocks_kernel"}
# Kernels that work on 16-byte vectors, with the template arguments of these instances; empty: all instances.
WIDE = r"[<,] ?(8|4)[,>]"
VECTORS = {
    "glu_forward_kernel": WIDE, "glu_backward_kernel": WIDE, "flat_kernel": WIDE, "add_norm_forward_kernel": "",
    "add_norm_backward_kernel": "", "add_norm_forward_long_kernel": WIDE, "add_norm_backward_long_kernel": WIDE,
    "ce_stats_kernel": "", "ce_gradient_kernel": "", "qk_norm_rope_forward_kernel": ", (8|4), 1",
    "qk_norm_rope_backward_kernel": ", (8|4), 1", "embedding_forward_kernel": "8>|float, float, 4>", "embedding_backward_kernel": "8>|float, float, 4>",
    "param_update_kernel": "", "block_square_sums_kernel": WIDE, "hash_blocks_kernel": "<true>", "column_partials_kernel": WIDE,
    "weigh_rows_kernel": WIDE,
}
# Tensor core kernels, and their number of instances: one per head size, with and without softcap, in bf16 and fp16.
MATRIX = {"mma_forward_kernel": 16, "mma_key_value_kernel": 16, "mma_query_kernel": 16}
# Those of experts: one per order of the weights and dtype; one per dtype of the gradients (fp32 alone for fp16), assigned and added.
EXPERTS = {"expert_rows_kernel": 4, "expert_wgrad_kernel": 6}
# The same by warp groups, with the orders of both operands' summands: 0 where they are innermost, else 1.
EXPERTS_GROUP = {"expert_group_rows_kernel": 4, "expert_group_wgrad_kernel": 6}
ORDERS = {r"expert_group_rows_kernel<[\w:]+, true>": "0, 0", r"expert_group_rows_kernel<[\w:]+, false>": "0, 1", "expert_group_wgrad_kernel<": "1, 1"}
# In FP8; weights are in one order.
EXPERTS_FP8 = {"expert_rows_fp8_kernel": 1, "expert_wgrad_fp8_kernel": 4}
# HALF stands for bf16 or f16, whichever the kernel is of.
HALVES, FP8 = r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.HALF\.HALF\.f32", r"wgmma\.mma_async\.sync\.aligned\.m64n128k32\.f32\.e4m3\.e4m3"
GROUP_HALVES = r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.HALF\.HALF"


def entries(ptx):
    """(demangled name, body) of each kernel."""
    found = [(m.group(1), m.end()) for m in re.finditer(r"\.entry\s+(\w+)\s*\(", ptx)]
    names = subprocess.run(["c++filt"], input="\n".join(n for n, _ in found), text=True, capture_output=True, check=True)
    ends = [at for _, at in found[1:]] + [len(ptx)]
    return [(name, ptx[begin:end]) for name, (_, begin), end in zip(names.stdout.splitlines(), found, ends)]


def ptx_of(plugin):
    """The PTX texts in a library, which are stored uncompressed and end with a zero byte."""
    content = plugin.read_bytes()
    texts = [content[m.start():content.index(b"\0", m.start())] for m in re.finditer(rb"\.version \d+\.\d+\s+\.target sm_90a\s", content)]
    return [text.decode() for text in texts]


class Ptx(unittest.TestCase):
    plugin = pathlib.Path("libtrainerd_cuda.so")

    @classmethod
    def setUpClass(cls):
        cls.kernels = [entry for text in ptx_of(cls.plugin) for entry in entries(text)]

    def test_no_kernel_uses_atomics(self):
        wrong = [name for name, body in self.kernels if re.search(r"^\s*(@%p\d+\s+)?(atom|red)\.", body, re.M)]
        self.assertGreater(len(self.kernels), 50)
        self.assertEqual(wrong, [])

    def test_matrix_kernels_use_the_tensor_cores_and_asynchronous_copies(self):
        matrices, arrived = r"ldmatrix\.sync\.aligned\.m8n8\.x4\.", r"cp\.async\.wait_all"
        shown, ended = r"fence\.proxy\.async\.shared::cta", r"wgmma\.wait_group\.sync\.aligned "
        for kernels, product, others in ((MATRIX, HALVES, (arrived, matrices + r"shared", matrices + r"trans\.shared", r"st\.global\.v4\.")),
                                         (EXPERTS, HALVES, (arrived, matrices)), (EXPERTS_FP8, FP8, (arrived, shown, ended + "0")),
                                         (EXPERTS_GROUP, GROUP_HALVES, (r"cp\.async\.wait_group 1", shown, ended + "1", ended + "0"))):
            wrong, seen = [], dict.fromkeys(kernels, 0)
            for name, body in self.kernels:
                short = next((k for k in kernels if re.search(rf"\b{k}[<(]", name)), None)
                if short is None:
                    continue
                seen[short] += 1
                own = product.replace("HALF", "f16" if "Fp16" in name else "bf16")
                for needed in (own, r"cp\.async\.cg\.shared\.global\S* \[.*\], 16,", *others):
                    if not re.search(needed, body):
                        wrong.append(f"{name} has no {needed}")
                orders = {o for k, o in ORDERS.items() if re.search(k, name)}
                if set(re.findall(own + r" \{[^}]*\}, %\w+, %\w+, 1, 1, 1, (\d, \d);", body)) != orders:
                    wrong.append(f"{name} does not take its operands in the orders {orders}")
            self.assertEqual(wrong, [])
            self.assertEqual(seen, kernels)

    def test_vector_kernels_move_16_bytes_at_a_time(self):
        wrong, seen = [], set()
        for name, body in self.kernels:
            short = re.search(r"(\w+)(<|\()", name.replace("(anonymous namespace)::", "")).group(1)
            if short not in VECTORS or not re.search(VECTORS[short], name):
                continue
            seen.add(short)
            if not re.search(r"ld\.global(\.\w+)*\.v[48]\.", body):
                wrong.append(f"{name} loads no vectors")
            if short not in READERS and not re.search(r"st\.global(\.\w+)*\.v[48]\.", body):
                wrong.append(f"{name} stores no vectors")
        self.assertEqual(wrong, [])
        self.assertEqual(seen, set(VECTORS))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Ptx.plugin = pathlib.Path(sys.argv.pop(1))
    unittest.main()
