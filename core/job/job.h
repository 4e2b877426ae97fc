#pragma once

#include <cstdint>
#include <string>

#include "core/job/faults_options.h"
#include "core/job/model_options.h"
#include "core/job/supervise_options.h"
#include "core/job/train_options.h"
#include "io/checkpoint/options.h"
#include "io/metrics/options.h"
#include "io/tokens/options.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"
#include "parallel/layout/options.h"

namespace trainerd::core::job {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
/// How a GEMM on a GPU gets its algorithm: the library's first proposal, or the fastest of its proposals by
/// timing.
enum class GemmAlgorithms : std::uint8_t { first, timed };

/// Whether repeated GPU calls are captured and launched as graphs: if that pays, or never.
enum class CudaGraphs : std::uint8_t { automatic, off };

/// Whether attention on a GPU may run by our own kernels, or only by the library.
enum class AttentionRequire : std::uint8_t { any, library };
/// How attention runs on a GPU.
struct AttentionRun {
  kernels::Determinism backward = kernels::Determinism::deterministic;
  AttentionRequire require = AttentionRequire::any;

  bool operator==(const AttentionRun&) const = default;
};

/// Instruction set of CPU kernels: the best that every node has, or a given one.
enum class IsaChoice : std::uint8_t { automatic, portable, avx2, avx512, avx512_bf16 };

/// Period over which worker failures are counted: a run of weeks may have many, but a broken machine has many
/// at once.
inline constexpr double kRestartSeconds = 600;

/// A composed and checked job: presets merged, defaults filled in. Written in full as `job.yaml`.
struct JobSpec {
  std::string name = "job";
  std::uint64_t seed = 0;
  std::string output;  ///< directory; default runs/<name>
  DeviceChoice device = DeviceChoice::automatic;
  AttentionRun attention;
  GemmAlgorithms gemm_algorithms = GemmAlgorithms::first;
  CudaGraphs cuda_graphs = CudaGraphs::automatic;
  IsaChoice isa = IsaChoice::automatic;
  std::int64_t threads = 0;   ///< CPU threads per worker; 0: one per core
  std::int64_t restarts = 3;  ///< maximum restarts of the workers within kRestartSeconds
  ModelOptions model;
  parallel::ParallelOptions parallel;
  RecomputeOptions recompute;
  BatchOptions batch;
  PrecisionRecipe precision;
  OptimizerOptions optimizer;
  LossOptions loss;
  std::int64_t steps = 0;
  io::DataOptions data;
  io::CheckpointOptions checkpoint;
  EvaluateOptions evaluate;
  io::MetricsOptions metrics;
  TraceOptions trace;
  FaultsOptions faults;
  SuperviseOptions supervise;
  parallel::ClusterOptions cluster;

  /// Microbatches per rank and step of `global` sequences; the last of them may have padding.
  std::int64_t microbatches(std::int64_t global) const {
    const std::int64_t sequences = batch.micro * parallel.dp;
    return (global + sequences - 1) / sequences;
  }
  std::int64_t microbatches() const { return microbatches(batch.global); }
  /// Sequences in the ranks' microbatches beyond the global batch: computed, but with weight 0.
  std::int64_t padding_sequences() const { return microbatches() * batch.micro * parallel.dp - batch.global; }
  /// Tokens of a microbatch on one rank.
  std::int64_t microbatch_tokens() const { return batch.micro * (model.seq_len / parallel.cp); }
  /// How many times as many microbatches step `step` has as the one before.
  double growth(std::int64_t step) const {
    const auto count = [this](std::int64_t s) { return static_cast<double>(microbatches(batch.of_step(s))); };
    return step == 1 || batch.ramp.empty() ? 1 : count(step) / count(step - 1);
  }
  std::int64_t tokens_per_step() const { return batch.global * model.seq_len; }
  /// Tokens of step `step`, from 1.
  std::int64_t tokens_of_step(std::int64_t step) const { return batch.of_step(step) * model.seq_len; }
  /// Number of terms in the mean loss of `global` sequences without masks: pairs with loss.dpo, else tokens.
  std::int64_t loss_terms(std::int64_t global) const {
    return loss.dpo.on() ? global : global * model.seq_len;
  }
  std::int64_t loss_terms_per_step() const { return loss_terms(batch.global); }

  /// This job with all steps of `global` sequences.
  JobSpec with_batch(std::int64_t global) const {
    JobSpec one = *this;
    one.batch.global = global;
    one.batch.ramp.clear();
    return one;
  }

  bool operator==(const JobSpec&) const = default;
};

/// True if the job's ranks communicate by NCCL, if there are several.
inline bool uses_nccl(const JobSpec& job) {
  return job.device == DeviceChoice::cuda && job.cluster.communication != parallel::Communication::staged;
}
/// True if ranks communicate through host memory. They may then share devices.
inline bool uses_staged(const JobSpec& job) {
  return job.cluster.communication == parallel::Communication::staged;
}

/// True if the job's replicas compute a step before the first one without an update, and compare its loss and
/// gradients bit by bit. Jobs whose groups of NCCL may sum in different orders have none.
inline bool has_canary(const JobSpec& job) {
  // Experts may compute rows of several ranks, and the bits of a product may depend on the place of a row.
  const bool sums_alike =
      !job.parallel.experts_apart() && (!uses_nccl(job) || (job.parallel.tp <= 2 && job.parallel.cp <= 2));
  return job.supervise.preflight && job.parallel.dp > 1 && sums_alike &&
         job.attention.backward != kernels::Determinism::fast;
}

/// The most that the job's kernels may use.
inline kernels::Isa most_isa(const JobSpec& job) {
  return job.isa == IsaChoice::automatic ? kernels::Isa::avx512_bf16
                                         : static_cast<kernels::Isa>(static_cast<int>(job.isa) - 1);
}
inline IsaChoice choice_of(kernels::Isa isa) { return static_cast<IsaChoice>(static_cast<int>(isa) + 1); }

}  // namespace trainerd::core::job
