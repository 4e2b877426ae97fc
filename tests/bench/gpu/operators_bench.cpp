// Rates of a device's operators in the shapes of jobs: GEMMs by role (with the library's first algorithm, and
// on a GPU also with the fastest), attention forward and backward, and memory-bound operators beside their
// floor. Prints one JSON line per measurement.
//
//   operators_bench [--seconds S] [--set KEY=VALUE]... JOB.yaml...
//
// The floor of an operator is the larger of its bytes over the bandwidth of a copy, measured first, and its
// FLOPs over the vendor's peak. Times are the device's own, medians over S seconds (0.1) of repetitions;
// inputs are random.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/model/rope.h"
#include "core/rank/device_rank.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/clock.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cost/cost.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops/op_class.h"
#include "kernels/scratch/scratch.h"
#include "parallel/tensor/head.h"

using namespace trainerd;
using namespace trainerd::kernels;
using Json = nlohmann::ordered_json;

namespace {

struct Measured {
  double median = 0, least = 0;
};

/// A device, the memory of the operators under measurement, and a timer.
class Bench {
 public:
  Bench(const parallel::Topology& topology, double seconds)
      : topology_(topology),
        seconds_(seconds),
        pool_(topology.device.threads),
        backend_(topology.device.kind == DeviceKind::cuda
                     ? open_cuda_plugin().make_backend(0)
                     : std::make_unique<CpuBackend>(topology.device, pool_)),
        stream_(backend_->make_stream("bench", &scratch_)) {
    if (topology.device.kind == DeviceKind::cpu) copy_bytes_ = std::int64_t{64} << 20;
    const Tensor from = normal(DType::f32, {copy_bytes_ / 4}), to = empty(DType::f32, {copy_bytes_ / 4});
    const Measured copied = time([&] { backend_->copy(*stream_, from, to); });
    bandwidth_ = 2.0 * static_cast<double>(copy_bytes_) / copied.median;
    print({{"kind", "copy"},
           {"device", target().name},
           {"bytes_per_second", bandwidth_},
           {"peak_flops", topology.peak.bf16},
           {"gemm_library", target().gemm_library},
           {"attention_library", target().attention_library}});
    clear();
  }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  const Target& target() const { return backend_->target(); }
  void of_job(const std::string& name) { job_ = name; }
  /// Sets the same limit as a run of the job does.
  void limit_attention(std::int64_t bytes) { backend_->limit_attention(bytes); }
  /// Frees all tensors, so that the next operators have the memory.
  void clear() { memory_.clear(), scratch_ = {}, scratch_memory_ = {}; }

  Tensor empty(DType dtype, const Shape& shape) {
    memory_.push_back(backend_->allocate(MemoryKind::device, shape.numel() * size_of(dtype)));
    return {memory_.back().data(), dtype, shape};
  }
  Tensor normal(DType dtype, const Shape& shape, float stddev = 1.0f) {
    const Tensor x = empty(dtype, shape);
    backend_->init_normal(*stream_, {.x = x,
                                     .key = ++key_,
                                     .stddev = stddev,
                                     .rows = 1,
                                     .columns = x.numel(),
                                     .logical_rows = 1,
                                     .logical_columns = x.numel()});
    return x;
  }
  Tensor ids(std::int64_t count, const std::function<std::int64_t(std::int64_t)>& value) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(value(i));
    const Tensor x = empty(DType::i32, {count});
    backend_->write(*stream_, std::as_bytes(std::span(values)), x);
    return x;
  }
  Tensor constant(const Shape& shape, float value) {
    const std::vector<float> values(static_cast<std::size_t>(shape.numel()), value);
    const Tensor x = empty(DType::f32, shape);
    backend_->write(*stream_, std::as_bytes(std::span(values)), x);
    return x;
  }
  Weight weight(const Tensor& plain, GemmRole role, std::int64_t tokens) {
    PrepareWeight prepare{.plain_NC = plain, .role = role, .tokens = tokens, .out = {}};
    Weight weight{plain, {}};
    const std::int64_t bytes = backend_->prepared_bytes(prepare);
    if (bytes == 0) return weight;
    prepare.out = weight.prepared = empty(DType::u8, {bytes});
    need_scratch(scratch_bytes(prepare, target()));
    backend_->prepare_weight(*stream_, prepare);
    return weight;
  }

  template <class Args>
  void measure(const char* kind, const std::string& op, const std::string& shape, const Args& args,
               void (Backend::*run)(Stream&, const Args&)) {
    print(measured(kind, op, shape, args, run));
  }

  template <class Args>
  Json measured(const char* kind, const std::string& op, const std::string& shape, const Args& args,
                void (Backend::*run)(Stream&, const Args&)) {
    need_scratch(scratch_bytes(args, target()));
    const Cost c = cost(args, target());
    const std::int64_t own = backend_->counters().own_attention;
    const Measured m = time([&] { (backend_.get()->*run)(*stream_, args); });
    const bool by_own = backend_->counters().own_attention > own;
    const double floor =
        std::max(c.bytes / bandwidth_, topology_.peak.bf16 > 0 ? c.flops / topology_.peak.bf16 : 0.0);
    const bool in_pieces = !by_own && op_class_on(args, target()).limited;
    return {{"kind", kind},
            {"job", job_},
            {"op", op},
            {"shape", shape + (by_own      ? ", own kernels"
                               : in_pieces ? ", in pieces"
                                           : "")},
            {"flops", c.flops},
            {"bytes", c.bytes},
            {"seconds", m.median},
            {"least_seconds", m.least},
            {"floor_seconds", floor}};
  }

  /// Measures the library's first algorithm, and on a GPU also the fastest of several. If the choice did not
  /// apply, the row's kind is "timed gemm not used".
  template <class Args>
  void measure_gemm(const std::string& op, const std::string& shape, const Args& args,
                    void (Backend::*run)(Stream&, const Args&)) {
    if (target().kind != DeviceKind::cuda) return measure("gemm", op, shape, args, run);
    backend_->use_gemms(backend_->time_gemms({}));  // drops the choices for earlier shapes
    measure("gemm", op, shape, args, run);
    const OpClass what = op_class(args);
    backend_->use_gemms(backend_->time_gemms({&what, 1}));
    const std::int64_t missed = backend_->counters().missed_gemm_choices;
    Json line = measured("timed gemm", op, shape, args, run);
    if (backend_->counters().missed_gemm_choices > missed) line["kind"] = "timed gemm not used";
    print(line);
  }

 private:
  void need_scratch(std::int64_t bytes) {
    bytes = align_up(bytes) + kAlignment;
    if (scratch_.capacity() >= bytes) return;
    scratch_memory_ = backend_->allocate(MemoryKind::device, bytes);
    scratch_ = Arena("scratch", scratch_memory_.data(), bytes);
  }

  /// Several calls between two events: launch overhead would dominate the time of one small kernel.
  Measured time(const std::function<void()>& run) {
    const auto from = backend_->make_event(), to = backend_->make_event();
    const auto batch = [&](int calls) {
      backend_->record(*stream_, *from);
      for (int i = 0; i < calls; ++i) run();
      backend_->record(*stream_, *to);
      backend_->wait_host(*to);
      return backend_->elapsed_seconds(*from, *to) / calls;
    };
    batch(1);  // makes plans and primitives
    const double once = batch(1);
    const int calls = once > 1e-3 ? 1 : once > 1e-4 ? 4 : 16;
    std::vector<double> all;
    for (double spent = 0; spent < seconds_ || all.size() < 5; spent += all.back() * calls)
      all.push_back(batch(calls));
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all[0]};
  }

  static void print(const Json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  parallel::Topology topology_;
  double seconds_;
  base::ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::vector<Buffer> memory_;
  Buffer scratch_memory_;
  Arena scratch_;
  std::unique_ptr<Stream> stream_;
  std::int64_t copy_bytes_ = std::int64_t{1} << 30;
  double bandwidth_ = 0;
  std::uint64_t key_ = 0;
  std::string job_;
};

std::string by(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

struct PrecisionCase {
  DType master, moments;
  Rounding rounding;
};

/// Measures one job's shapes on one device.
class JobShapes {
 public:
  JobShapes(Bench& bench, const core::job::JobSpec& job)
      : b(bench),
        m(job.model),
        dtype(job.precision.compute),
        grads(job.precision.grads),
        T(job.batch.micro * job.model.seq_len),
        heads{.heads = m.heads, .kv_heads = m.kv_heads, .head_size = m.head_dim} {
    b.of_job(job.name);
  }

  void gemms() {
    const std::int64_t q = m.heads * m.head_dim;
    const std::int64_t vocab_rows = align_up(m.vocab, b.target().vocab_multiple);
    const std::int64_t head_tokens =
        parallel::head_chunk_tokens(T, {vocab_rows, m.hidden, dtype}, b.target());
    gemm("qkv", T, heads.columns(), m.hidden);
    gemm("attn_out", T, m.hidden, q);
    gemm("gate_up", T, 2 * m.ffn, m.hidden);
    gemm("down", T, m.hidden, m.ffn);
    gemm("head", head_tokens, vocab_rows, m.hidden);
    fused_swiglu();
  }
  void attention() {
    const std::int64_t sequences = T / m.seq_len;
    const Tensor bounds = b.ids(sequences + 1, [&](std::int64_t i) { return i * m.seq_len; });
    const Tensor qkv = b.normal(dtype, {T, heads.columns()}),
                 dout = b.normal(dtype, {T, m.heads * m.head_dim});
    const Tensor out = b.empty(dtype, dout.shape), dqkv = b.empty(dtype, qkv.shape),
                 lse = b.empty(DType::f32, {m.heads, T});
    const float scale = 1.0f / std::sqrt(static_cast<float>(m.head_dim));
    const std::string shape = by({sequences, m.seq_len}) + ", heads " + std::to_string(m.heads) + "/" +
                              std::to_string(m.kv_heads) + " of " + std::to_string(m.head_dim);
    const AttentionForward f{.block = whole_sequences(heads, scale, bounds, m.seq_len),
                             .q_THE = heads.queries_of(qkv),
                             .k_TKE = heads.keys_of(qkv),
                             .v_TKE = heads.values_of(qkv),
                             .out_THE = heads.outputs_of(out),
                             .lse_HT = lse};
    b.measure("attention", "attention_forward", shape, f, &Backend::attention_forward);
    for (const Determinism determinism : {Determinism::deterministic, Determinism::fast})
      b.measure("attention",
                determinism == Determinism::fast ? "attention_backward, fast" : "attention_backward", shape,
                AttentionBackward{.block = f.block,
                                  .determinism = determinism,
                                  .q_THE = f.q_THE,
                                  .k_TKE = f.k_TKE,
                                  .v_TKE = f.v_TKE,
                                  .out_THE = f.out_THE,
                                  .lse_HT = lse,
                                  .dout_THE = heads.outputs_of(dout),
                                  .dq_THE = heads.queries_of(dqkv),
                                  .dk_TKE = heads.keys_of(dqkv),
                                  .dv_TKE = heads.values_of(dqkv)},
                &Backend::attention_backward);
    b.clear();
  }
  void memory_bound() { rows(), norms(), rope(), loss(), update(); }

 private:
  void gemm(const std::string& name, std::int64_t tokens, std::int64_t n, std::int64_t c) {
    const Tensor x = b.normal(dtype, {tokens, c}), dy = b.normal(dtype, {tokens, n}),
                 plain = b.normal(dtype, {n, c}, 0.02f);
    const Tensor y = b.empty(dtype, {tokens, n}), dx = b.empty(dtype, {tokens, c}),
                 dw = b.empty(grads, {n, c});
    const std::string shape = by({tokens, n, c});
    b.measure_gemm(name + " fprop", shape,
                   LinearFprop{.x_TC = x,
                               .weight = b.weight(plain, GemmRole::fprop, tokens),
                               .bias_N = {},
                               .addend_TN = {},
                               .y_TN = y},
                   &Backend::linear_fprop);
    b.measure_gemm(name + " dgrad", shape,
                   LinearDgrad{.dy_TN = dy, .weight = b.weight(plain, GemmRole::dgrad, tokens), .dx_TC = dx},
                   &Backend::linear_dgrad);
    b.measure_gemm(name + " wgrad", shape,
                   LinearWgrad{.dy_TN = dy, .x_TC = x, .dweight_NC = dw, .dbias_N = {}},
                   &Backend::linear_wgrad);
    b.clear();
  }
  void fused_swiglu() {
    if (m.mlp != core::job::Mlp::swiglu) return;
    const Tensor x = b.normal(dtype, {T, m.hidden}), up = b.normal(dtype, {2 * m.ffn, m.hidden}, 0.02f),
                 down = b.normal(dtype, {m.hidden, m.ffn}, 0.02f);
    const Tensor gate_up = b.empty(dtype, {T, 2 * m.ffn}), act = b.empty(dtype, {T, m.ffn}),
                 dgate_up = b.empty(dtype, {T, 2 * m.ffn});
    b.measure_gemm(
        "linear_swiglu", by({T, 2 * m.ffn, m.hidden}),
        LinearSwiglu{
            .x_TC = x, .weight = b.weight(up, GemmRole::fprop, T), .gate_up_T2F = gate_up, .act_TF = act},
        &Backend::linear_swiglu);
    b.measure_gemm("linear_dgrad_swiglu", by({T, m.ffn, m.hidden}),
                   LinearDgradSwiglu{.dy_TD = x,
                                     .weight = b.weight(down, GemmRole::dgrad, T),
                                     .gate_up_T2F = gate_up,
                                     .dgate_up_T2F = dgate_up,
                                     .act_TF = {}},
                   &Backend::linear_dgrad_swiglu);
    b.measure("memory", "glu_forward", by({T, m.ffn}), GluForward{.gate_up_T2F = gate_up, .act_TF = act},
              &Backend::glu_forward);
    b.measure("memory", "glu_backward", by({T, m.ffn}),
              GluBackward{.dact_TF = act, .gate_up_T2F = gate_up, .dgate_up_T2F = dgate_up, .act_TF = {}},
              &Backend::glu_backward);
    b.clear();
  }
  void norms() {
    const Shape flow{T, m.hidden};
    const Tensor residual = b.normal(dtype, flow), delta = b.normal(dtype, flow), sum = b.empty(dtype, flow),
                 y = b.empty(dtype, flow);
    const Tensor weight = b.normal(dtype, {m.hidden}), mean = b.empty(DType::f32, {T}),
                 rstd = b.empty(DType::f32, {T});
    const Tensor dy = b.normal(dtype, flow), dsum = b.normal(dtype, flow), dx = b.empty(dtype, flow),
                 dweight = b.empty(grads, {m.hidden});
    b.measure("memory", "add_norm_forward", by({T, m.hidden}),
              AddNormForward{.residual_TD = residual,
                             .delta_TD = delta,
                             .weight_D = weight,
                             .bias_D = {},
                             .sum_TD = sum,
                             .y_TD = y,
                             .mean_T = mean,
                             .rstd_T = rstd},
              &Backend::add_norm_forward);
    b.measure("memory", "add_norm_backward", by({T, m.hidden}),
              AddNormBackward{.dy_TD = dy,
                              .dsum_TD = dsum,
                              .sum_TD = sum,
                              .weight_D = weight,
                              .mean_T = mean,
                              .rstd_T = rstd,
                              .dx_TD = dx,
                              .dweight_D = dweight,
                              .dbias_D = {}},
              &Backend::add_norm_backward);
    b.clear();
  }
  void rope() {
    if (m.positions != core::job::Positions::rope) return;
    const Tensor qkv = b.normal(dtype, {T, heads.columns()}),
                 table = b.empty(DType::f32, {m.seq_len, m.head_dim});
    const Tensor positions = b.ids(T, [&](std::int64_t t) { return t % m.seq_len; });
    const core::model::RopeFrequencies rope = core::model::rope_frequencies(m);
    b.backend().rope_table(b.stream(),
                           {.frequencies = rope.of_pair, .factor = rope.factor, .table_SR = table});
    const std::string shape = by({T, heads.columns()});
    b.measure("memory", "qk_norm_rope_forward", shape,
              QkNormRopeForward{.heads = heads,
                                .qkv_in = qkv,
                                .qkv_out = qkv,
                                .positions_T = positions,
                                .rope_table_SR = table,
                                .q_weight_E = {},
                                .k_weight_E = {}},
              &Backend::qk_norm_rope_forward);
    b.measure("memory", "qk_norm_rope_backward", shape,
              QkNormRopeBackward{.heads = heads,
                                 .qkv_in = {},
                                 .dqkv = qkv,
                                 .positions_T = positions,
                                 .rope_table_SR = table,
                                 .q_weight_E = {},
                                 .k_weight_E = {},
                                 .dq_weight_E = {},
                                 .dk_weight_E = {}},
              &Backend::qk_norm_rope_backward);
    b.clear();
  }
  void rows() {
    const Tensor tokens = b.ids(T, [&](std::int64_t t) { return t * 7919 % m.vocab; });
    const Tensor table = b.normal(dtype, {m.vocab, m.hidden}, 0.02f), out = b.empty(dtype, {T, m.hidden}),
                 dtable = b.empty(grads, {m.vocab, m.hidden});
    b.measure("memory", "embedding_forward", by({T, m.hidden}),
              EmbeddingForward{.tokens_T = tokens,
                               .table_VD = table,
                               .positions_T = {},
                               .positions_table_SD = {},
                               .out_TD = out},
              &Backend::embedding_forward);
    b.measure("memory", "embedding_backward", by({T, m.hidden}),
              EmbeddingBackward{.rows_T = tokens, .dout_TD = out, .dtable_VD = dtable},
              &Backend::embedding_backward);
    b.clear();
  }
  void loss() {
    const std::int64_t tokens = parallel::head_chunk_tokens(T, {m.vocab, m.hidden, dtype}, b.target());
    const Tensor logits = b.normal(dtype, {tokens, m.vocab}),
                 targets = b.ids(tokens, [&](std::int64_t t) { return t * 7919 % m.vocab; });
    const Tensor max = b.empty(DType::f32, {tokens}), sum = b.empty(DType::f32, {tokens}),
                 target = b.empty(DType::f32, {tokens}), loss = b.empty(DType::f32, {tokens});
    b.measure("memory", "ce_stats", by({tokens, m.vocab}),
              CeStats{.logits_TV = logits,
                      .targets_T = targets,
                      .vocab = m.vocab,
                      .max_T = max,
                      .sum_exp_T = sum,
                      .target_logit_T = target},
              &Backend::ce_stats);
    b.measure("memory", "ce_finish", by({tokens, m.vocab}),
              CeFinish{.logits_TV = logits,
                       .targets_T = targets,
                       .loss_weight_T = b.constant({tokens}, 1.0f),
                       .vocab = m.vocab,
                       .max_T = max,
                       .sum_exp_T = sum,
                       .target_logit_T = target,
                       .grad_scale = 1.0f,
                       .loss_T = loss},
              &Backend::ce_finish);
    b.measure("memory", "ce_loss", by({tokens, m.vocab}),
              CeLoss{.logits_TV = logits,
                     .targets_T = targets,
                     .loss_weight_T = b.constant({tokens}, 1.0f),
                     .vocab = m.vocab,
                     .grad_scale = 1.0f,
                     .max_T = max,
                     .sum_exp_T = sum,
                     .target_logit_T = target,
                     .loss_T = loss},
              &Backend::ce_loss);
    b.clear();
  }
  void update() {
    // At most 2^28 elements of the state: far more than any cache.
    const std::int64_t n =
        std::min<std::int64_t>(std::int64_t{1} << 28, core::job::count_parameters(m).total);
    const Tensor g = b.normal(grads, {n}),
                 control = b.empty(DType::u8, {static_cast<std::int64_t>(sizeof(StepControlValues))});
    const StepControlValues values{.grad_norm = 1, .grad_factor = 1};
    b.backend().write(b.stream(), std::as_bytes(std::span(&values, 1)), control);
    b.measure("memory", "block_square_sums", by({n}),
              BlockSquareSums{.x = g, .sums = b.empty(DType::f64, {norm_blocks(n)})},
              &Backend::block_square_sums);
    const std::vector<UpdateRange> ranges{
        {.begin = 0, .count = n, .weight_decay = 0.1f, .columns = n, .stride = n}};
    const PrecisionCase cases[] = {{DType::f32, DType::f32, Rounding::nearest},
                                   {DType::bf16, DType::bf16, Rounding::nearest},
                                   {DType::bf16, DType::bf16, Rounding::stochastic}};
    for (const PrecisionCase& c : cases) {
      if (c.master == DType::bf16 && dtype != DType::bf16) continue;  // bf16 masters are the parameters
      const bool separate = c.master != dtype;
      const ParamUpdate args{.ranges = ranges,
                             .grads = g,
                             .master = b.normal(c.master, {n}, 0.02f),
                             .moment1 = b.normal(c.moments, {n}, 0.01f),
                             .moment2 = b.empty(c.moments, {n}),
                             .params = separate ? b.empty(dtype, {n}) : Tensor{},
                             .control = control,
                             .lr = 1e-4f,
                             .step = 3,
                             .rounding = c.rounding};
      b.measure("memory",
                std::string("param_update, state in ") + name_of(c.master) +
                    (c.rounding == Rounding::stochastic ? ", stochastic" : ""),
                by({n}), args, &Backend::param_update);
    }
    b.clear();
  }
  Bench& b;
  const core::job::ModelOptions& m;
  DType dtype, grads;
  std::int64_t T;
  HeadGeometry heads;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> jobs, overrides;
    double seconds = 0.1;
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      if (flag.starts_with("--") && i + 1 == argc) throw std::invalid_argument(flag + " needs a value");
      if (flag == "--seconds") seconds = std::stod(argv[++i]);
      else if (flag == "--set") overrides.push_back(argv[++i]);
      else if (flag.starts_with("--")) throw std::invalid_argument("unknown option " + flag);
      else jobs.push_back(flag);
    }
    if (jobs.empty())
      throw std::invalid_argument("usage: operators_bench [--seconds S] [--set KEY=VALUE]... JOB.yaml...");
    std::optional<Bench> bench;
    for (const std::string& path : jobs) {
      const core::job::JobSpec job = core::spec::load_job(path, overrides);
      if (!bench) bench.emplace(core::spec::job_topology(job), seconds);
      const parallel::Topology topology = core::spec::job_topology(job);
      bench->limit_attention(
          core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device)
              .attention_limit_bytes);
      JobShapes shapes(*bench, job);
      shapes.gemms();
      shapes.attention();
      shapes.memory_bound();
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "operators_bench: %s\n", error.what());
    return 1;
  }
}
