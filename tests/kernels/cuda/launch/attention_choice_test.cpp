// The choice of attention kernel, pieces and scratch on a CUDA device, by shapes and target.

#include <catch2/catch.hpp>
#include <set>

#include "kernels/cost/cost.h"
#include "kernels/cuda/launch/attention_problem.h"

namespace trainerd::test {
namespace {

using kernels::AttentionBackward;
using kernels::AttentionCall;
using kernels::AttentionForward;
using kernels::AttentionKernel;
using kernels::Determinism;
using kernels::DType;
using kernels::Target;
using kernels::Tensor;
using kernels::cuda::choose_attention;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Whole causal sequences in a merged projection.
struct WholeSequences {
  std::int64_t sequences = 2, tokens = 1024, heads = 8, kv_heads = 2, head_size = 128;
  DType dtype = DType::bf16;
  Determinism determinism = Determinism::deterministic;

  AttentionBackward backward() const {
    const kernels::HeadGeometry geometry{heads, kv_heads, head_size};
    const std::int64_t rows = sequences * tokens;
    const Tensor qkv{nullptr, dtype, {rows, geometry.columns()}},
        out{nullptr, dtype, {rows, heads * head_size}};
    AttentionBackward a;
    a.block = kernels::whole_sequences(geometry, 0.1f, {nullptr, DType::i32, {sequences + 1}}, tokens);
    a.determinism = determinism;
    a.q_THE = a.dq_THE = geometry.queries_of(qkv);
    a.k_TKE = a.dk_TKE = geometry.keys_of(qkv);
    a.v_TKE = a.dv_TKE = geometry.values_of(qkv);
    a.out_THE = a.dout_THE = geometry.outputs_of(out);
    a.lse_HT = {nullptr, DType::f32, {heads, rows}};
    return a;
  }
  AttentionForward forward() const {
    const AttentionBackward b = backward();
    return {.block = b.block,
            .q_THE = b.q_THE,
            .k_TKE = b.k_TKE,
            .v_TKE = b.v_TKE,
            .out_THE = b.out_THE,
            .lse_HT = b.lse_HT};
  }
};

Target cuda_device(int sm_version) {
  Target target;
  target.kind = kernels::DeviceKind::cuda;
  target.sm_version = sm_version;
  target.attention_library = "cuDNN";
  return target;
}

AttentionKernel forward_kernel(const WholeSequences& s, int sm) {
  return choose_attention(s.forward(), cuda_device(sm)).kernel;
}
AttentionKernel backward_kernel(const WholeSequences& s, int sm) {
  return choose_attention(s.backward(), cuda_device(sm)).kernel;
}

/// A stand-in for the library: records the calls and answers with three times the formula's workspace.
std::set<AttentionCall> asked;
std::int64_t thrice(const Target& target, const AttentionCall& call) {
  asked.insert(call);
  return 3 * kernels::cuda::backward_workspace(call, target.sm_version);
}
std::int64_t no_plan(const Target&, const AttentionCall&) { return kernels::kNoAttentionPlan; }
std::int64_t unknown(const Target&, const AttentionCall&) { return kernels::kUnknownAttentionPlan; }

}  // namespace

TEST_CASE("large heads go to the library if it has plans for them", "[attention][choice]") {
  for (const std::int64_t head_size : {136, 192, 256}) {
    const WholeSequences s{.head_size = head_size};
    CHECK(forward_kernel(s, 90) == AttentionKernel::library);
    CHECK(backward_kernel(s, 90) == AttentionKernel::library);
    for (const int sm : {80, 100, 120}) {
      CHECK(forward_kernel(s, sm) == AttentionKernel::library);
      CHECK(backward_kernel(s, sm) == AttentionKernel::plain);
    }
  }
  CHECK(backward_kernel({.head_size = 128}, 80) == AttentionKernel::library);
}

TEST_CASE("calls that no library supports run on our tensor core kernels if heads are whole chunks",
          "[attention][choice]") {
  CHECK(forward_kernel({.head_size = 36}, 90) == AttentionKernel::plain);
  CHECK(backward_kernel({.head_size = 36}, 90) == AttentionKernel::plain);
  CHECK(forward_kernel({.dtype = DType::f32}, 90) == AttentionKernel::plain);
  CHECK(backward_kernel({.dtype = DType::f32}, 90) == AttentionKernel::plain);
  AttentionBackward windowed = WholeSequences{}.backward();
  windowed.block.window = 100;
  CHECK(choose_attention(windowed, cuda_device(90)).kernel == AttentionKernel::tensor_cores);
  CHECK_FALSE(choose_attention(windowed, cuda_device(90)).limited);
  windowed.dq_THE.row_stride += 4;
  CHECK(choose_attention(windowed, cuda_device(90)).kernel == AttentionKernel::plain);
  Target none = cuda_device(90);
  none.attention_library.clear();
  CHECK(choose_attention(WholeSequences{}.forward(), none).kernel == AttentionKernel::tensor_cores);
  CHECK(op_class_on(WholeSequences{}.backward(), Target{}).kernel == AttentionKernel::host);
}

TEST_CASE("a long deterministic backward needs memory linear in its length", "[attention][choice]") {
  const Target target = cuda_device(90);
  const WholeSequences s{.sequences = 1, .tokens = 131072, .heads = 32, .kv_heads = 8};
  WholeSequences fast = s;
  fast.determinism = Determinism::fast;
  const kernels::cuda::AttentionScratch own(s.backward(), target), library(fast.backward(), target);
  CHECK(own.choice.kernel == AttentionKernel::tensor_cores);
  CHECK(own.choice.limited);
  CHECK(own.total == 4 * s.heads * s.tokens);
  CHECK(library.choice.kernel == AttentionKernel::library);
  CHECK(op_class_on(s.backward(), target).limited);
  CHECK(op_class_on(s.backward(), target).kernel == AttentionKernel::tensor_cores);
  // Twice the length takes twice the scratch. On sm_100 determinism costs the library no workspace.
  WholeSequences twice = s;
  twice.tokens *= 2;
  CHECK(kernels::cuda::AttentionScratch(twice.backward(), target).total == 2 * own.total);
  CHECK(choose_attention(s.backward(), cuda_device(100)).kernel == AttentionKernel::library);
}

TEST_CASE("our own deterministic backward is at most 1.5 times the library's fast one by FLOPs and bytes",
          "[attention][choice]") {
  const Target target = cuda_device(90);
  const auto compare = [&](std::int64_t heads, std::int64_t kv_heads) {
    const WholeSequences s{.sequences = 1, .tokens = 131072, .heads = heads, .kv_heads = kv_heads};
    WholeSequences quick = s;
    quick.determinism = Determinism::fast;
    const kernels::Cost own = cost(s.backward(), target), fast = cost(quick.backward(), target);
    REQUIRE(op_class_on(s.backward(), target).kernel == AttentionKernel::tensor_cores);
    REQUIRE(op_class_on(quick.backward(), target).kernel == AttentionKernel::library);
    const double area = 131072.0 * 131072.0 / 2 * static_cast<double>(heads) * 128;
    CHECK(own.flops == 2 * 7 * area);
    CHECK(fast.flops == 2 * 5 * area);
    // In bf16: q, o, dO and dQ have a head's elements for each query head, k, v, dK and dV for each key head.
    const double wide = 2.0 * 131072 * 128 * static_cast<double>(heads),
                 narrow = 2.0 * 131072 * 128 * static_cast<double>(kv_heads),
                 row = 4.0 * 131072 * static_cast<double>(heads);
    // Row sums: o, dO, the sums. Then twice q, k, v, dO, log-sum-exps and sums; then dQ, dK, dV.
    CHECK(own.bytes == (2 * wide + row) + 2 * (2 * wide + 2 * narrow + 2 * row) + (wide + 2 * narrow));
    // The library moves inputs and gradients once. It writes and reads row sums, dQ in fp32 and, with grouped
    // heads, dK and dV of each query head.
    const double workspace = row + 2 * wide + (heads == kv_heads ? 0 : 2 * wide);
    CHECK(fast.bytes == Approx(4 * wide + 4 * narrow + row + 2 * workspace).epsilon(1e-6));
    CHECK(own.flops <= 1.5 * fast.flops);
    CHECK(own.bytes <= 1.5 * fast.bytes);
    CHECK(own.bytes > 1.5 * (fast.bytes - 2 * workspace));
  };
  compare(32, 8);
  compare(32, 32);
}

TEST_CASE("our own kernels take few more blocks than sequences have tiles", "[attention][choice]") {
  const auto tiles = [](std::int64_t sequences, std::int64_t rows, std::int64_t longest) {
    return kernels::cuda::attention_tiles(sequences, rows, longest, 128).all;
  };
  CHECK(tiles(4, 4 * 8192, 8192) == 4 * 64);
  // Four samples of up to 512 packed documents each, of which one may fill its sample.
  CHECK(tiles(2048, 4 * 8192, 8192) == 4 * 64 + 2048);
  CHECK(tiles(3, 300, 200) == 2 + 3);
  CHECK(tiles(2, 300, 128) == 2);
  // A sequence has at least as many numbers as tiles.
  for (std::int64_t begin = 0; begin < 300; ++begin)
    for (std::int64_t length = 0; length < 300; ++length)
      REQUIRE((begin + length) / 128 + 1 - begin / 128 >= (length + 127) / 128);
}

TEST_CASE("the workspace limit splits the library's backward into pieces", "[attention][choice]") {
  const WholeSequences s{.sequences = 1, .tokens = 8192, .heads = 32, .kv_heads = 8};
  Target target = cuda_device(90);
  const kernels::cuda::AttentionChoice by_head = choose_attention(s.backward(), target);
  CHECK(by_head.kernel == AttentionKernel::library);
  CHECK(by_head.limited);
  CHECK(by_head.pieces.kv_heads < 8);
  CHECK(by_head.workspace <= kGiB);
  target.attention_limit_bytes = 6 * kGiB;
  const kernels::cuda::AttentionChoice whole = choose_attention(s.backward(), target);
  CHECK_FALSE(whole.limited);
  CHECK(whole.pieces.kv_heads == 8);
  CHECK((whole.workspace > 4 * kGiB && whole.workspace <= 6 * kGiB));
  // Sequences are split first.
  target.attention_limit_bytes = kGiB;
  const kernels::cuda::AttentionChoice by_sequence = choose_attention(
      WholeSequences{.sequences = 64, .tokens = 1024, .heads = 32, .kv_heads = 8}.backward(), target);
  CHECK(by_sequence.pieces.kv_heads == 8);
  CHECK((by_sequence.pieces.sequences > 1 && by_sequence.pieces.sequences < 64));
  // A single key head: the library may use up to 4 GiB; beyond that only within the limit.
  const WholeSequences grouped{.sequences = 1, .tokens = 8192, .heads = 16, .kv_heads = 1},
      longer{.sequences = 1, .tokens = 32768, .heads = 32, .kv_heads = 8};
  const kernels::cuda::AttentionChoice one_head = choose_attention(grouped.backward(), target);
  CHECK(one_head.kernel == AttentionKernel::library);
  CHECK((one_head.workspace > 2 * kGiB && one_head.workspace <= 4 * kGiB));
  CHECK(choose_attention(longer.backward(), target).kernel == AttentionKernel::tensor_cores);
  CHECK(choose_attention(longer.backward(), target).limited);
  target.attention_limit_bytes = 16 * kGiB;
  CHECK(choose_attention(longer.backward(), target).kernel == AttentionKernel::library);
}

TEST_CASE("pieces whose log-sum-exp would not begin at 16 bytes are not the library's",
          "[attention][choice]") {
  const auto kernel = [](std::int64_t tokens, std::int64_t heads) {
    const WholeSequences s{.sequences = 1, .tokens = tokens, .heads = heads, .kv_heads = heads};
    const kernels::cuda::AttentionChoice choice = choose_attention(s.backward(), cuda_device(90));
    CHECK(choice.limited);
    return choice.kernel;
  };
  CHECK(kernel(8192, 32) == AttentionKernel::library);
  CHECK(kernel(8190, 31) == AttentionKernel::tensor_cores);
  // Without pieces any length will do.
  CHECK(backward_kernel({.sequences = 1, .tokens = 1022}, 90) == AttentionKernel::library);
  // Pieces of sequences begin at a multiple of their heads.
  const WholeSequences even{.sequences = 64, .tokens = 1022, .heads = 32, .kv_heads = 8},
      odd{.sequences = 65, .tokens = 1021, .heads = 31, .kv_heads = 31};
  CHECK(choose_attention(even.backward(), cuda_device(90)).kernel == AttentionKernel::library);
  CHECK(choose_attention(even.backward(), cuda_device(90)).limited);
  CHECK(choose_attention(odd.backward(), cuda_device(90)).kernel == AttentionKernel::tensor_cores);
}

TEST_CASE("the workspace is the installed library's, piece by piece", "[attention][choice]") {
  Target target = cuda_device(90);
  target.attention_workspace = thrice;
  asked.clear();
  const WholeSequences s{.sequences = 3, .tokens = 4096, .heads = 12, .kv_heads = 3};
  const kernels::cuda::AttentionChoice choice = choose_attention(s.backward(), target);
  CHECK(choice.kernel == AttentionKernel::library);
  CHECK(choice.workspace <= target.attention_limit_bytes);
  const AttentionCall piece{.backward = true,
                            .causal = true,
                            .deterministic = true,
                            .sequences = choice.pieces.sequences,
                            .heads = choice.pieces.kv_heads * 4,
                            .kv_heads = choice.pieces.kv_heads,
                            .tokens = 4096,
                            .head_size = 128,
                            .value_size = 128};
  CHECK(asked.contains(piece));
  // Plus one MiB for the plan of the call itself.
  CHECK(choice.workspace == 3 * kernels::cuda::backward_workspace(piece, 90) + (1 << 20));
  CHECK(kernels::cuda::AttentionScratch(s.backward(), target).total ==
        4 * 12 * 3 * 4096 + kernels::align_up(choice.workspace));
  target.attention_workspace = no_plan;
  CHECK(choose_attention(s.backward(), target).kernel == AttentionKernel::tensor_cores);
  CHECK_FALSE(choose_attention(s.backward(), target).limited);
  CHECK(choose_attention(s.forward(), target).kernel == AttentionKernel::tensor_cores);
  target.attention_workspace = unknown;
  CHECK(choose_attention(s.backward(), target).workspace ==
        choose_attention(s.backward(), cuda_device(90)).workspace);
}

}  // namespace trainerd::test
