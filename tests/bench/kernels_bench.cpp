// Rates of the CPU backend's GEMMs by role and of its attention, over the shapes of the benchmark model (6
// layers, hidden 384, 6 heads, ffn 1024, 8 sequences of 256 tokens), beside the best square GEMM that oneDNN
// does on the same threads in the same run. All rows of one table are timed in turn, round after round, so
// that another process on the machine disturbs them alike; medians are printed.
//
//   kernels_bench [rounds [wall|cpu [ISA]]]
//
// With `cpu`, time is the process's processor time over its threads, which a busy machine can still measure.
// ISA (portable, avx2, avx512, avx512_bf16) limits our kernels and oneDNN; without BF16 instructions the
// tables of bf16 are left out.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cost/cost.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm_cache.h"
#include "kernels/cpu/tiling/gemm.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::bench {
namespace {

using namespace kernels;

constexpr std::int64_t kTokens = 2048;

enum class Clock { wall, processor };

double now(Clock clock) {
  timespec t{};
  ::clock_gettime(clock == Clock::wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Row {
  std::string name;
  double flops = 0;
  bool gemm = false;  ///< counts towards the mean of the roles
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

class Table {
 public:
  Table(DType dtype, int threads, Isa most)
      : dtype_(dtype),
        pool_(threads),
        target_(detect_cpu(threads, most)),
        backend_(target_, pool_),
        squares_(target_) {
    memory_ = backend_.allocate(MemoryKind::device, kMemory);
    arena_ = Arena("tensors", memory_.data(), kMemory);
    scratch_memory_ = backend_.allocate(MemoryKind::device, kScratch);
    scratch_ = Arena("scratch", scratch_memory_.data(), kScratch);
    stream_ = backend_.make_stream("compute", &scratch_);
  }

  void print(int rounds, Clock clock) {
    const double share = clock == Clock::wall ? 1.0 : 1.0 / pool_.threads();
    for (const std::int64_t size : {1024, 2048})
      for (const GemmKey::Right right : {GemmKey::Right::plain, GemmKey::Right::prepared})
        add_square(size, right);
    const std::size_t squares = rows_.size();
    for (const auto& [n, c] : {std::pair<std::int64_t, std::int64_t>{1152, 384},
                               {384, 384},
                               {2048, 384},
                               {384, 1024},
                               {256, 384},
                               {32000, 384}})
      add_roles(n, c);
    add_fused();
    add_attention();
    for (int round = 0; round < rounds; ++round)
      for (Row& row : rows_) {
        if (round == 0) row.run();  // makes primitives, touches pages
        const double begin = now(clock);
        row.run();
        row.seconds.push_back((now(clock) - begin) * share);
      }
    double ceiling = 0, flops = 0, seconds = 0;
    for (std::size_t i = 0; i < squares; ++i) ceiling = std::max(ceiling, rows_[i].flops / rows_[i].median());
    std::printf("\n%s, %d threads: ceiling %.0f GFLOP/s\n", name_of(dtype_), pool_.threads(), ceiling / 1e9);
    std::printf("%-44s %10s %10s %8s\n", "", "us", "GFLOP/s", "%");
    for (const Row& row : rows_) {
      const double t = row.median();
      std::printf("%-44s %10.1f %10.1f %8.1f\n", row.name.c_str(), t * 1e6, row.flops / t / 1e9,
                  100 * row.flops / t / ceiling);
      if (row.gemm) flops += row.flops, seconds += t;
    }
    std::printf("%-44s %10s %10.1f %8.1f\n", "all GEMM roles", "", flops / seconds / 1e9,
                100 * flops / seconds / ceiling);
  }

 private:
  static constexpr std::int64_t kMemory = std::int64_t{2} << 30, kScratch = std::int64_t{128} << 20;

  Tensor tensor(DType dtype, const Shape& shape) {
    const Tensor x = arena_.take(dtype, shape, MemoryTerm::activations);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const float value = i < 4096 ? normal(generator_) : 0.0f;
      if (dtype == DType::f32) x.as<float>()[i] = i < 4096 ? value : x.as<float>()[i % 4096];
      if (dtype == DType::bf16) x.as<Bf16>()[i] = i < 4096 ? to_bf16(value) : x.as<Bf16>()[i % 4096];
    }
    return x;
  }
  Tensor activation(std::int64_t columns) { return tensor(dtype_, {kTokens, columns}); }

  void add(const std::string& name, double flops, bool gemm, std::function<void()> run) {
    rows_.push_back({name, flops, gemm, std::move(run)});
  }

  Weight weight(const Tensor& plain, GemmRole role, const std::string& name) {
    PrepareWeight prepare{.plain_NC = plain, .role = role, .tokens = kTokens, .out = {}};
    Weight w{plain, {}};
    if (const std::int64_t bytes = backend_.prepared_bytes(prepare); bytes > 0) {
      prepare.out = w.prepared = arena_.take(DType::u8, {bytes}, MemoryTerm::prepared_weights);
      add("  prepare " + name, 0, false, [=, this] { backend_.prepare_weight(*stream_, prepare); });
    }
    return w;
  }

  void add_square(std::int64_t size, GemmKey::Right right) {
    const Tensor a = tensor(dtype_, {size, size}), b = tensor(dtype_, {size, size}),
                 c = tensor(dtype_, {size, size});
    GemmKey key;
    key.m = size / pool_.threads();
    key.n = key.k = key.lda = key.ldb = size;
    key.in = key.out = dtype_;
    key.right = right;
    if (right == GemmKey::Right::prepared && target_.isa < Isa::avx512) return;
    add(std::string("square ") + std::to_string(size) + (right == GemmKey::Right::plain ? "" : " packed"),
        2.0 * static_cast<double>(key.m * pool_.threads()) * static_cast<double>(size * size), false,
        [=, this] {
          const ArenaScope scope(scratch_);
          std::byte* scratch =
              scratch_.take_bytes(pool_.threads() * library_scratch(target_), MemoryTerm::workspace);
          const Gemm& gemm = squares_.get(key);
          pool_.run(pool_.threads(), [&](std::int64_t block, int thread) {
            const std::int64_t offset = block * key.m * size * size_of(dtype_);
            gemm.run(thread, {.a = a.data + offset,
                              .b = b.data,
                              .c = c.data + offset,
                              .scratch = scratch + thread * library_scratch(target_)});
          });
        });
  }

  void add_roles(std::int64_t n, std::int64_t c) {
    const Tensor x = activation(c), y = activation(n), plain = tensor(dtype_, {n, c});
    const Tensor gradient = tensor(DType::f32, {n, c});
    const double flops = 2.0 * static_cast<double>(kTokens * n * c);
    const std::string shape = std::to_string(n) + " x " + std::to_string(c);
    const Weight forward = weight(plain, GemmRole::fprop, "fprop " + shape);
    const Weight backward = weight(plain, GemmRole::dgrad, "dgrad " + shape);
    add("fprop " + shape, flops, true, [=, this] {
      backend_.linear_fprop(*stream_,
                            {.x_TC = x, .weight = forward, .bias_N = {}, .addend_TN = {}, .y_TN = y});
    });
    add("  fprop plain " + shape, flops, false, [=, this] {
      backend_.linear_fprop(*stream_,
                            {.x_TC = x, .weight = {plain, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = y});
    });
    add("dgrad " + shape, flops, true,
        [=, this] { backend_.linear_dgrad(*stream_, {.dy_TN = y, .weight = backward, .dx_TC = x}); });
    add("  dgrad plain " + shape, flops, false, [=, this] {
      backend_.linear_dgrad(*stream_, {.dy_TN = y, .weight = {plain, {}}, .dx_TC = x});
    });
    add("wgrad " + shape, flops, true, [=, this] {
      backend_.linear_wgrad(*stream_, {.dy_TN = y, .x_TC = x, .dweight_NC = gradient, .dbias_N = {}});
    });
  }

  void add_fused() {
    constexpr std::int64_t D = 384, F = 1024;
    const Tensor x = activation(D), gate_up = activation(2 * F), dgate_up = activation(2 * F),
                 act = activation(F);
    const Tensor dact = activation(F);
    const Weight up = weight(tensor(dtype_, {2 * F, D}), GemmRole::fprop, "gate and up");
    const Weight down = weight(tensor(dtype_, {D, F}), GemmRole::dgrad, "down");
    const double flops = 2.0 * kTokens * D * F;
    add("linear_swiglu", 2 * flops, false, [=, this] {
      backend_.linear_swiglu(*stream_, {.x_TC = x, .weight = up, .gate_up_T2F = gate_up, .act_TF = act});
    });
    add("  unfused", 2 * flops, false, [=, this] {
      backend_.linear_fprop(*stream_,
                            {.x_TC = x, .weight = up, .bias_N = {}, .addend_TN = {}, .y_TN = gate_up});
      backend_.glu_forward(*stream_, {.gate_up_T2F = gate_up, .act_TF = act});
    });
    add("linear_dgrad_swiglu", flops, false, [=, this] {
      backend_.linear_dgrad_swiglu(
          *stream_,
          {.dy_TD = x, .weight = down, .gate_up_T2F = gate_up, .dgate_up_T2F = dgate_up, .act_TF = act});
    });
    add("  unfused", flops, false, [=, this] {
      backend_.linear_dgrad(*stream_, {.dy_TN = x, .weight = down, .dx_TC = dact});
      backend_.glu_backward(
          *stream_, {.dact_TF = dact, .gate_up_T2F = gate_up, .dgate_up_T2F = dgate_up, .act_TF = act});
    });
  }

  void add_attention() {
    const HeadGeometry heads{.heads = 6, .kv_heads = 6, .head_size = 64};
    for (const std::int64_t length : {256, 1024}) {
      const std::int64_t sequences = kTokens / length;
      const Tensor qkv = activation(heads.columns()), out = activation(384), dout = activation(384);
      const Tensor dqkv = activation(heads.columns()), lse = tensor(DType::f32, {heads.heads, kTokens});
      const Tensor bounds = arena_.take(DType::i32, {sequences + 1}, MemoryTerm::batch);
      for (std::int64_t b = 0; b <= sequences; ++b)
        bounds.as<std::int32_t>()[b] = static_cast<std::int32_t>(b * length);
      const AttentionForward f{.block = whole_sequences(heads, 0.125f, bounds, length),
                               .q_THE = heads.queries_of(qkv),
                               .k_TKE = heads.keys_of(qkv),
                               .v_TKE = heads.values_of(qkv),
                               .out_THE = heads.outputs_of(out),
                               .lse_HT = lse};
      const AttentionBackward b{.block = f.block,
                                .q_THE = f.q_THE,
                                .k_TKE = f.k_TKE,
                                .v_TKE = f.v_TKE,
                                .out_THE = f.out_THE,
                                .lse_HT = lse,
                                .dout_THE = heads.outputs_of(dout),
                                .dq_THE = heads.queries_of(dqkv),
                                .dk_TKE = heads.keys_of(dqkv),
                                .dv_TKE = heads.values_of(dqkv)};
      const std::string name = " causal S " + std::to_string(length) + " E 64";
      add("attention forward" + name, cost(f, target_).flops, false,
          [=, this] { backend_.attention_forward(*stream_, f); });
      add("attention backward" + name, cost(b, target_).flops, false,
          [=, this] { backend_.attention_backward(*stream_, b); });
    }
  }

  DType dtype_;
  base::ThreadPool pool_;
  Target target_;
  CpuBackend backend_;
  GemmCache squares_;
  Buffer memory_, scratch_memory_;
  Arena arena_, scratch_;
  std::unique_ptr<Stream> stream_;
  std::vector<Row> rows_;
  std::mt19937 generator_{1};
};

}  // namespace
}  // namespace trainerd::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const auto clock = argc > 2 && std::string(argv[2]) == "cpu" ? trainerd::bench::Clock::processor
                                                               : trainerd::bench::Clock::wall;
  trainerd::kernels::Isa most = trainerd::kernels::Isa::avx512_bf16;
  if (argc > 3 && !trainerd::kernels::parse_isa(argv[3], most)) {
    std::fprintf(stderr, "kernels_bench: %s is no instruction set\n", argv[3]);
    return 2;
  }
  trainerd::kernels::limit_gemm_library(most);
  for (const trainerd::kernels::DType dtype :
       {trainerd::kernels::DType::f32, trainerd::kernels::DType::bf16}) {
    if (trainerd::kernels::widened(dtype, trainerd::kernels::detect_cpu(1, most))) {
      std::printf("\n%s: left out: without BF16 instructions its products compute in fp32\n", name_of(dtype));
      continue;
    }
    for (const int threads : {1, 2}) trainerd::bench::Table(dtype, threads, most).print(rounds, clock);
  }
}
