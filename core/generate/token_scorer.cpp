#include "core/generate/token_scorer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "core/hf/tensor_names.h"
#include "core/model/model_chunk.h"
#include "core/model/parameters.h"
#include "core/rank/backend.h"
#include "core/rank/device_rank.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/optimizer.h"
#include "core/train/param_placement.h"
#include "core/train/rank_groups.h"
#include "core/train/snapshot.h"
#include "core/train/step_memory.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "kernels/base/thread_pool.h"
#include "kernels/meta/meta_backend.h"

namespace trainerd::core::generate {
namespace {

using namespace kernels;

/// Rows for `count` tokens. Kernels are created per length: quickly on a CPU; on a GPU attention's plan takes
/// about a second.
std::int64_t rows_for(std::int64_t count, DeviceKind device) {
  constexpr std::int64_t kStep = 32;
  const std::int64_t rows = (count + kStep - 1) / kStep * kStep;
  return device == DeviceKind::cuda
             ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)))
             : rows;
}

std::string precision_of(const hf::WeightSource& source, const std::string& asked) {
  if (!asked.empty()) return asked;
  const std::set<std::string> biases = hf::expert_biases(source.model());
  const bool all = std::all_of(
      source.tensors().begin(), source.tensors().end(),
      [&](const hf::SourceTensor& t) { return t.dtype == DType::bf16 || biases.contains(t.name); });
  return all ? "bf16" : "fp32";
}

/// A one-rank job of the model, for its forward pass only.
job::JobSpec job_of(const hf::WeightSource& source, const ScorerOptions& options) {
  job::ModelOptions model = source.model();
  const std::int64_t most =
      model.positions == job::Positions::learned ? model.seq_len : source.longest_sequence();
  if (most > 0 && options.longest > most)
    throw base::spec_error("the text and what is asked for have up to " + std::to_string(options.longest) +
                           " tokens; the model takes " + std::to_string(most) +
                           ": ask for fewer, or give a shorter text");
  model.seq_len = options.longest;
  std::string text = "device: " + options.device + "\nprecision: " + precision_of(source, options.precision) +
                     "\nbatch: {global: 1, micro: 1}\nsteps: 1\noptimizer: {lr: 1.0}\ndata: {format: "
                     "synthetic}\nrecompute: {kind: full}\n";
  if (options.threads > 0) text += "threads: " + std::to_string(options.threads) + "\n";
  text += spec::model_yaml(model);
  return spec::parse_job(text, "generate");
}

train::SlotCounts one_slot() {
  train::SlotCounts slots;
  slots.pool_of_chunk = {0};
  slots.of_pool = {{1, 1, 0, 0, 0}};
  return slots;
}

/// Removes gradients, master weights and optimizer state, and second copies of weights for GEMMs.
model::DeclaredParams frozen(model::DeclaredParams declared) {
  for (model::ParamInfo& info : declared.infos) info.trainable = info.gemm_weight = false;
  return declared;
}

/// The model on a backend. In the meta world it counts the memory.
class ForwardPass {
 public:
  ForwardPass(const job::JobSpec& job, const parallel::Layout& layout, Backend& backend,
              parallel::World& world, train::StepMemory& memory)
      : job_(job),
        backend_(backend),
        memory_(memory),
        groups_(layout, 0, job.model, world, backend),
        stream_(backend.make_stream("compute", &memory.scratch())),
        declared_(
            frozen(model::declare_parameters(job.model, parallel::chunks_of(layout, 0), job.model.seq_len,
                                             false, backend.target().vocab_multiple))),
        params_(declared_.infos, train::optimizer_views(job.optimizer, declared_.infos), job.precision,
                train::param_placement(layout, groups_, 1), backend,
                {.persistent = memory.persistent(), .states = memory.persistent(), .host = memory.host()}) {
    Arena& persistent = memory.persistent();
    const model::RopeTables rope = model::take_rope_tables(job.model, persistent);
    model::fill_rope_tables(job.model, rope, backend, *stream_);
    logits_1V_ =
        persistent.take(job.precision.compute,
                        {1, model::local_sizes(job.model, 1, 0, backend.target().vocab_multiple).vocab_rows},
                        MemoryTerm::activations);
    chunk_ = std::make_unique<model::ModelChunk>(
        job.model, job.recompute, declared_.chunks.front(), job.precision.compute, params_,
        parallel::TensorParallel{.backend = backend, .group = groups_.tp()}, rope);
    frame_.to_backward = &memory.slot(0, train::SlotClass::forward_to_backward, 0);
    frame_.to_weight = &memory.slot(0, train::SlotClass::forward_to_weight, 0);
  }

  model::ParamStore& params() { return params_; }
  Stream& stream() { return *stream_; }
  const Tensor& logits() const { return logits_1V_; }

  /// Leaves the logits on the device.
  void run(std::span<const std::int32_t> tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t rows = std::min(rows_for(count, backend_.target().kind), job_.model.seq_len);
    // No token sees later ones, so the padding's ids do not matter.
    std::vector<std::int32_t> ids(tokens.begin(), tokens.end()), positions(static_cast<std::size_t>(rows));
    ids.resize(static_cast<std::size_t>(rows), 0);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
    const std::vector<std::int32_t> bounds{0, static_cast<std::int32_t>(rows)};
    const auto put = [&](const std::vector<std::int32_t>& values) {
      const Tensor to =
          frame_.to_weight->take(DType::i32, {static_cast<std::int64_t>(values.size())}, MemoryTerm::batch);
      backend_.write(*stream_, std::as_bytes(std::span(values)), to);
      return to;
    };
    frame_.batch.tokens_T = put(ids);
    frame_.batch.positions_T = put(positions);
    frame_.batch.cu_seqlens = put(bounds);
    frame_.batch.sequences = 1;
    frame_.batch.max_seqlen = rows;
    params_.begin_pass({parallel::ParamGatherer::Pass::evaluate});
    params_.begin_walk();
    chunk_->forward_logits(*stream_, frame_, count - 1, logits_1V_);
    frame_.to_backward->release(0);
    frame_.to_weight->release(0);
  }

 private:
  const job::JobSpec& job_;
  Backend& backend_;
  train::StepMemory& memory_;
  train::RankGroups groups_;
  std::unique_ptr<Stream> stream_;
  model::DeclaredParams declared_;
  model::ParamStore params_;
  std::unique_ptr<model::ModelChunk> chunk_;
  Tensor logits_1V_;
  model::Frame frame_;
};

MemoryBudget budget_of(const job::JobSpec& job, const parallel::Layout& layout, const Target& target) {
  MetaBackend backend(target, [](const MetaCall&) {});
  parallel::MetaWorld world(0);
  train::StepMemory memory(one_slot(), target.alignment);
  ForwardPass forward(job, layout, backend, world, memory);
  forward.run(std::vector<std::int32_t>(static_cast<std::size_t>(job.model.seq_len), 0));
  return memory.budget();
}

}  // namespace

struct TokenScorer::State {
  job::JobSpec job;
  parallel::Topology topology;
  parallel::Layout layout;
  MemoryBudget budget;
  base::ThreadPool pool;
  std::unique_ptr<Backend> backend;
  parallel::SingleRankWorld world;
  train::StepMemory memory;
  ForwardPass forward;
  std::vector<std::byte> raw;
  std::vector<float> logits;

  State(const hf::WeightSource& source, const ScorerOptions& options)
      : job(job_of(source, options)),
        topology(spec::job_topology(job)),
        layout(rank::layout_of(job, topology)),
        budget(fitting(job, layout, topology)),
        pool(topology.device.threads),
        backend(rank::make_backend(topology, pool, 0)),
        memory(*backend, one_slot(), budget),
        forward(job, layout, *backend, world, memory) {
    train::Snapshot(forward.params())
        .load_weights(*backend, forward.stream(),
                      [&](const io::TensorSlice& box, std::span<std::byte> out) { source.read(box, out); });
    forward.params().publish(forward.stream());
    logits.resize(static_cast<std::size_t>(job.model.vocab));
    raw.resize(static_cast<std::size_t>(forward.logits().bytes()));
  }

  static MemoryBudget fitting(const job::JobSpec& job, const parallel::Layout& layout,
                              const parallel::Topology& topology) {
    MemoryBudget budget = budget_of(job, layout, topology.device);
    const std::int64_t there =
        topology.device_memory_bytes > 0 ? topology.device_memory_bytes : topology.node_memory_bytes;
    if (budget.total_bytes() > there)
      throw base::capacity_error("the model does not fit: its weights and a text of " +
                                 std::to_string(job.model.seq_len) + " tokens need " +
                                 io::short_bytes(budget.total_bytes()) + ", and there are " +
                                 io::short_bytes(there) + ": take --precision bf16, or a shorter text");
    return budget;
  }
};

TokenScorer::TokenScorer(const hf::WeightSource& source, const ScorerOptions& options)
    : state_(std::make_unique<State>(source, options)) {}
TokenScorer::~TokenScorer() = default;

std::int64_t TokenScorer::bytes() const { return state_->budget.total_bytes(); }

std::span<const float> TokenScorer::next(std::span<const std::int32_t> tokens) {
  State& s = *state_;
  base::check(!tokens.empty() && std::cmp_less_equal(tokens.size(), s.job.model.seq_len),
              "a text has 1 token to as many as were asked for");
  for (const std::int32_t id : tokens)
    base::check(id >= 0 && id < s.job.model.vocab, "the tokens are in the vocabulary");
  s.forward.run(tokens);
  s.backend->read_back(s.forward.stream(), s.forward.logits(), s.raw);
  if (s.forward.logits().dtype == DType::f32) {
    std::memcpy(s.logits.data(), s.raw.data(), s.logits.size() * sizeof(float));
  } else {
    for (std::size_t id = 0; id < s.logits.size(); ++id) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, s.raw.data() + id * sizeof(bits), sizeof(bits));
      s.logits[id] = s.forward.logits().dtype == DType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
    }
  }
  if (const auto cap = static_cast<float>(s.job.model.logit_softcap); cap > 0)
    for (float& logit : s.logits) logit = cap * std::tanh(logit / cap);
  return s.logits;
}

}  // namespace trainerd::core::generate
