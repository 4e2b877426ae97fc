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
/// How a GEMM on a GPU gets its algorithm: the first that the library proposes, or the quickest of those by
/// timing.
enum class GemmAlgorithms : std::uint8_t { first, timed };

/// Whether repeated calls of a GPU are captured and put on it as graphs: where that pays, or never.
enum class CudaGraphs : std::uint8_t { automatic, off };

/// Whether attention on a GPU may run by our own kernels, or by the library alone.
enum class AttentionRequire : std::uint8_t { any, library };
/// How attention runs on a GPU.
struct AttentionRun {
  kernels::Determinism backward = kernels::Determinism::deterministic;
  AttentionRequire require = AttentionRequire::any;

  bool operator==(const AttentionRun&) const = default;
};

/// Instruction set of the CPU's kernels: the best that every node has, or the one that is named.
enum class IsaChoice : std::uint8_t { automatic, portable, avx2, avx512, avx512_bf16 };

/// Deaths of workers are counted over this time: a run of weeks may see many, a broken machine sees them at
/// once.
inline constexpr double kRestartSeconds = 600;

/// A job, composed and checked: every preset merged, every default filled in. Written out whole as
/// `job.yaml`.
struct JobSpec {
  std::string name = "job";
  std::uint64_t seed = 0;
  std::string output;  ///< directory; default runs/<name>
  DeviceChoice device = DeviceChoice::automatic;
  AttentionRun attention;
  GemmAlgorithms gemm_algorithms = GemmAlgorithms::first;
  CudaGraphs cuda_graphs = CudaGraphs::automatic;
  IsaChoice isa = IsaChoice::automatic;
  std::int64_t threads = 0;   ///< CPU threads of a worker; 0: one for each core
  std::int64_t restarts = 3;  ///< of the workers after one has died, within kRestartSeconds
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

  /// Of each rank and step; the last of them may have padding.
  std::int64_t microbatches() const {
    const std::int64_t sequences = batch.micro * parallel.dp;
    return (batch.global + sequences - 1) / sequences;
  }
  /// Sequences that the ranks' microbatches have beyond the global batch: computed, and without weight.
  std::int64_t padding_sequences() const { return microbatches() * batch.micro * parallel.dp - batch.global; }
  std::int64_t tokens_per_step() const { return batch.global * model.seq_len; }
  /// Terms of the mean that a step's loss is, if none is masked: pairs with loss.dpo, else tokens.
  std::int64_t loss_terms_per_step() const { return loss.dpo.on() ? batch.global : tokens_per_step(); }

  bool operator==(const JobSpec&) const = default;
};

/// Whether the job's ranks reach each other by NCCL, if there are several.
inline bool uses_nccl(const JobSpec& job) {
  return job.device == DeviceChoice::cuda && job.cluster.communication != parallel::Communication::staged;
}
/// Whether they do so through host memory, and may share devices.
inline bool uses_staged(const JobSpec& job) {
  return job.cluster.communication == parallel::Communication::staged;
}

/// Whether the job's replicas compute a step before the first, whose update is left out, and compare what
/// they make of it.
inline bool has_canary(const JobSpec& job) {
  return job.supervise.preflight && job.parallel.dp > 1 &&
         job.attention.backward != kernels::Determinism::fast;
}

/// The most that the job's kernels may use.
inline kernels::Isa most_isa(const JobSpec& job) {
  return job.isa == IsaChoice::automatic ? kernels::Isa::avx512_bf16
                                         : static_cast<kernels::Isa>(static_cast<int>(job.isa) - 1);
}
inline IsaChoice choice_of(kernels::Isa isa) { return static_cast<IsaChoice>(static_cast<int>(isa) + 1); }

}  // namespace trainerd::core::job
