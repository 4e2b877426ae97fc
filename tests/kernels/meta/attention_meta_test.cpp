// Attention in the meta world: the counts that the planner replays, and the arguments that are refused.

#include "kernels/meta/meta_backend.h"
#include "tests/kernels/attention_oracle.h"

namespace trainerd::test {
namespace {

using kernels::AttentionBackward;
using kernels::AttentionForward;
using kernels::DeviceKind;
using kernels::HeadView;
using kernels::WriteMode;

constexpr kernels::HeadGeometry kHeads{.heads = 4, .kv_heads = 2, .head_size = 64};

/// `sequences` sequences of `queries` queries and `keys` keys each; tensors without values.
struct Call {
  std::int64_t sequences = 1, queries = 64, keys = 64, first_query = 0, first_key = 0, window = 0;
  MaskKind mask = MaskKind::causal;
  DType dtype = DType::bf16;

  HeadView heads(std::int64_t rows, std::int64_t heads) const {
    return kernels::heads_from({nullptr, dtype, {rows, heads * kHeads.head_size}}, 0, heads,
                               kHeads.head_size);
  }
  AttentionForward forward() const {
    const Tensor bounds{nullptr, DType::i32, {sequences + 1}};
    return {.block = {.heads = kHeads,
                      .mask = mask,
                      .window = window,
                      .sequences = sequences,
                      .queries = {.cu_seqlens = bounds, .max_seqlen = queries, .first = first_query},
                      .keys = {.cu_seqlens = bounds, .max_seqlen = keys, .first = first_key}},
            .q_THE = heads(sequences * queries, kHeads.heads),
            .k_TKE = heads(sequences * keys, kHeads.kv_heads),
            .v_TKE = heads(sequences * keys, kHeads.kv_heads),
            .out_THE = heads(sequences * queries, kHeads.heads),
            .lse_HT = {nullptr, DType::f32, {kHeads.heads, sequences * queries}}};
  }
  AttentionBackward backward() const {
    const AttentionForward f = forward();
    return {.block = f.block,
            .q_THE = f.q_THE,
            .k_TKE = f.k_TKE,
            .v_TKE = f.v_TKE,
            .out_THE = f.out_THE,
            .lse_HT = f.lse_HT,
            .dout_THE = f.out_THE,
            .dq_THE = f.q_THE,
            .dk_TKE = f.k_TKE,
            .dv_TKE = f.v_TKE};
  }
};

kernels::Target cuda_target() {
  kernels::Target target;
  target.kind = DeviceKind::cuda;
  target.sm_version = 90;
  target.attention_library = "cuDNN";
  return target;
}

/// The meta world's record of one call.
class Meta {
 public:
  explicit Meta(const kernels::Target& target)
      : backend_(target, [this](const kernels::MetaCall& call) { seen_ = call; }),
        memory_(backend_.allocate(kernels::MemoryKind::device, kBytes)),
        scratch_("scratch", memory_.data(), kBytes),
        stream_(backend_.make_stream("compute", &scratch_)) {}

  kernels::MetaCall operator()(const AttentionForward& a) {
    backend_.attention_forward(*stream_, a);
    return seen_;
  }
  kernels::MetaCall operator()(const AttentionBackward& a) {
    backend_.attention_backward(*stream_, a);
    return seen_;
  }
  kernels::MetaCall operator()(const kernels::AttentionSinkForward& a) {
    backend_.attention_sink_forward(*stream_, a);
    return seen_;
  }
  kernels::MetaCall operator()(const kernels::AttentionSinkBackward& a) {
    backend_.attention_sink_backward(*stream_, a);
    return seen_;
  }

 private:
  static constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  kernels::MetaCall seen_;
  kernels::MetaBackend backend_;
  kernels::Buffer memory_;
  kernels::Arena scratch_;
  std::unique_ptr<kernels::Stream> stream_;
};

/// Number of pairs that the mask allows, per head.
double pairs(const Call& c) {
  double count = 0;
  for (std::int64_t i = 0; i < c.queries; ++i)
    for (std::int64_t j = 0; j < c.keys; ++j) {
      const std::int64_t query = c.first_query + i, key = c.first_key + j;
      if (c.mask == MaskKind::causal && (key > query || (c.window > 0 && query - key >= c.window))) continue;
      ++count;
    }
  return count * static_cast<double>(c.sequences);
}

}  // namespace

TEST_CASE("attention's FLOPs count the pairs that the mask allows, up to half of the diagonals",
          "[attention][meta]") {
  Meta meta(cuda_target());
  for (const Call& c :
       {Call{}, Call{.sequences = 3}, Call{.mask = MaskKind::none}, Call{.window = 10},
        Call{.queries = 32, .first_query = 96}, Call{.queries = 32, .keys = 48, .first_query = 20},
        Call{.queries = 32, .keys = 48, .first_query = 20, .window = 9}, Call{.first_key = 100},
        Call{.keys = 16, .first_query = 30, .window = 24}, Call{.sequences = 2, .first_query = 64}}) {
    const double per_pair = 4.0 * kHeads.head_size * kHeads.heads, counted = pairs(c) * per_pair;
    const double diagonals =
        (c.window > 0 ? 2 : 1) * 0.5 * static_cast<double>(c.sequences * c.queries) * per_pair;
    const double flops = meta(c.forward()).cost.flops;
    CHECK(std::abs(flops - counted) <= diagonals);
    // Five products against two. Our own kernels repeat two of them, so that every sum has one owner.
    const kernels::MetaCall backward = meta(c.backward());
    CHECK(backward.cost.flops ==
          (backward.what.kernel == kernels::AttentionKernel::library ? 2.5 : 3.5) * flops);
    CHECK((counted > 0) == (flops > 0));
  }
}

TEST_CASE("attention's FLOPs of blocks add up to those of the whole", "[attention][meta]") {
  Meta meta(cuda_target());
  for (const std::int64_t window : {0, 100}) {
    double sum = 0;
    for (std::int64_t q = 0; q < 256; q += 64)
      for (std::int64_t k = 0; k < 256; k += 32)
        sum +=
            meta(
                Call{.queries = 64, .keys = 32, .first_query = q, .first_key = k, .window = window}.forward())
                .cost.flops;
    CHECK(sum == meta(Call{.queries = 256, .keys = 256, .window = window}.forward()).cost.flops);
  }
}

TEST_CASE("documents whose lengths only the device knows count as the longest that fit",
          "[attention][meta]") {
  Meta meta(cuda_target());
  // At most 8 documents in 2 rows of 512 count as two documents of 512.
  AttentionForward packed = Call{.sequences = 2, .queries = 512, .keys = 512}.forward();
  const double whole = meta(packed).cost.flops;
  packed.block.sequences = 8;
  packed.block.queries.cu_seqlens = packed.block.keys.cu_seqlens = {nullptr, DType::i32, {9}};
  CHECK(meta(packed).cost.flops == whole);
  CHECK(meta(packed).what.sequences == 2);
  packed.block.queries.first_B = {nullptr, DType::i32, {8}};
  CHECK(meta(packed).cost.flops == 2 * whole);  // all keys may come before all queries
  packed.block.queries.first_bounds = true;     // unless the host knows that they do not
  CHECK(meta(packed).cost.flops == whole);
}

TEST_CASE("attention reads the tensors that it merges into or adds to", "[attention][meta]") {
  Meta meta(cuda_target());
  AttentionForward f = Call{}.forward();
  const double assigned = meta(f).cost.bytes;
  f.mode = WriteMode::accumulate;
  CHECK(meta(f).cost.bytes == assigned + static_cast<double>(f.out_THE.bytes() + f.lse_HT.bytes()));
  AttentionBackward b = Call{}.backward();
  b.dq_mode = WriteMode::accumulate;  // the library cannot accumulate: both calls use our own kernels
  const double gradients = meta(b).cost.bytes;
  b.dkv_mode = WriteMode::accumulate;
  CHECK(meta(b).cost.bytes == gradients + 2.0 * static_cast<double>(b.dk_TKE.bytes()));
}

TEST_CASE("a sink costs its memory traffic, and the library still applies", "[attention][meta]") {
  Meta meta(cuda_target());
  const AttentionForward f = Call{}.forward();
  const auto out = static_cast<double>(f.out_THE.bytes()), lse = static_cast<double>(f.lse_HT.bytes());
  kernels::AttentionSinkForward forward{
      .out_THE = f.out_THE, .lse_HT = f.lse_HT, .sinks_H = {nullptr, DType::bf16, {kHeads.heads}}};
  CHECK(meta(forward).cost.bytes == 2 * out + 2 * lse);
  CHECK(meta(forward).scratch_bytes == 0);
  kernels::AttentionSinkBackward backward{.out_THE = f.out_THE,
                                          .dout_THE = f.out_THE,
                                          .lse_HT = f.lse_HT,
                                          .sinks_H = forward.sinks_H,
                                          .dsinks_H = {nullptr, DType::f32, {kHeads.heads}}};
  CHECK(meta(backward).cost.bytes == 2 * out + lse);
  backward.dsinks_H.shape = {kHeads.heads + 1};
  CHECK_THROWS_AS(meta(backward), std::logic_error);
  forward.sinks_H.dtype = DType::i32;
  CHECK_THROWS_AS(meta(forward), std::logic_error);
}

TEST_CASE("the library's scratch is planned for the calls that the library gets, and not for more",
          "[attention][meta]") {
  Meta meta(cuda_target());
  const Call whole{.sequences = 2, .queries = 256, .keys = 256};
  const std::int64_t library = meta(whole.backward()).scratch_bytes, own = 2 * 256 * kHeads.heads * 4;
  CHECK(library > own);
  CHECK(meta(whole.forward()).scratch_bytes > 0);
  const auto not_served = [&](const std::function<void(AttentionBackward&)>& change) {
    AttentionBackward b = whole.backward();
    change(b);
    CHECK(meta(b).scratch_bytes == own);
  };
  not_served([](AttentionBackward& b) { b.block.window = 20; });
  not_served([](AttentionBackward& b) { b.block.softcap = 50; });
  not_served([](AttentionBackward& b) { b.block.queries.first = 256; });
  not_served([](AttentionBackward& b) { b.block.keys.first_B = {nullptr, DType::i32, {2}}; });
  not_served([](AttentionBackward& b) { b.dkv_mode = WriteMode::accumulate; });
  not_served([](AttentionBackward& b) { b.dq_mode = WriteMode::accumulate; });
  not_served([](AttentionBackward& b) { b.dq_THE.dtype = DType::f32; });
  not_served([](AttentionBackward& b) {
    b.block.sequences = 3, b.block.queries.cu_seqlens = b.block.keys.cu_seqlens = {nullptr, DType::i32, {4}};
  });
  not_served([](AttentionBackward& b) { b.k_TKE.row_stride += 4; });
  AttentionForward merged = whole.forward();
  merged.mode = WriteMode::accumulate;
  CHECK(meta(merged).scratch_bytes == 0);
}

TEST_CASE("heads that no CUDA kernel supports are an error of the plan", "[attention][meta]") {
  const kernels::HeadGeometry heads{.heads = 1, .kv_heads = 1, .head_size = 264};
  const Tensor qkv{nullptr, DType::bf16, {64, heads.columns()}}, out{nullptr, DType::bf16, {64, 264}};
  const AttentionForward f{.block = kernels::whole_sequences(heads, 1.0f, {nullptr, DType::i32, {2}}, 64),
                           .q_THE = heads.queries_of(qkv),
                           .k_TKE = heads.keys_of(qkv),
                           .v_TKE = heads.values_of(qkv),
                           .out_THE = heads.outputs_of(out),
                           .lse_HT = {nullptr, DType::f32, {1, 64}}};
  CHECK_THROWS_AS(Meta(cuda_target())(f), base::DeviceError);
  Meta(kernels::Target{})(f);
}

TEST_CASE("invalid arguments of attention are refused when they are recorded", "[attention][meta]") {
  Meta meta(cuda_target());
  const auto refused = [&](const std::function<void(AttentionBackward&)>& change) {
    AttentionBackward b = Call{.sequences = 2}.backward();
    meta(b);
    change(b);
    CHECK_THROWS_AS(meta(b), std::logic_error);
  };
  refused([](AttentionBackward& b) { b.block.heads.kv_heads = 3; });
  refused([](AttentionBackward& b) { b.block.window = -1; });
  refused([](AttentionBackward& b) { b.block.softcap = -1; });
  refused([](AttentionBackward& b) { b.block.softcap = std::numeric_limits<float>::infinity(); });
  refused([](AttentionBackward& b) { b.block.mask = MaskKind::none, b.block.window = 4; });
  refused([](AttentionBackward& b) { b.block.sequences = 3; });
  refused([](AttentionBackward& b) { b.block.keys.max_seqlen = 63; });
  refused([](AttentionBackward& b) { b.block.keys.cu_seqlens.dtype = DType::f32; });
  refused([](AttentionBackward& b) { b.block.queries.first_B = {nullptr, DType::i32, {3}}; });
  refused([](AttentionBackward& b) { b.k_TKE.dtype = DType::f32; });
  refused([](AttentionBackward& b) { b.v_TKE.rows = 64; });
  refused([](AttentionBackward& b) { b.k_TKE.heads = 4; });
  refused([](AttentionBackward& b) { b.q_THE.row_stride = 4 * 64 - 1; });
  refused([](AttentionBackward& b) { b.out_THE.dtype = DType::i32; });
  refused([](AttentionBackward& b) { b.dout_THE.dtype = DType::f32; });
  refused([](AttentionBackward& b) { b.lse_HT.shape = {4, 64}; });
  refused([](AttentionBackward& b) { b.dk_TKE.dtype = DType::i32; });
  refused([](AttentionBackward& b) { b.dq_THE.rows = 64; });
}

}  // namespace trainerd::test
