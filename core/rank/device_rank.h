#pragma once

#include <functional>
#include <memory>

#include "core/rank/dry_run.h"
#include "core/train/trainer.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/graph_backend.h"
#include "kernels/backend/observed_backend.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::core::rank {

/// One rank on its device, built from a job: planned, memory allocated, trainer constructed but not
/// initialised.
class DeviceRank {
 public:
  using Observe = std::function<void(const kernels::ObservedCall&)>;

  /// `world` must outlive this. `observe`, if given, is called for every operator, as `when` specifies. There
  /// are no graphs then, because each operator is timed by itself. `gemm_algorithms`: choices of an earlier
  /// run, for a job that asks for timed ones.
  DeviceRank(const job::JobSpec& job, const parallel::Layout& layout, const parallel::Topology& topology,
             std::int64_t rank, parallel::World& world, Observe observe = {},
             const std::string& gemm_algorithms = {}, kernels::Observation when = kernels::Observation::each);
  /// The only rank of its world.
  DeviceRank(const job::JobSpec& job, const parallel::Topology& topology, Observe observe = {},
             kernels::Observation when = kernels::Observation::each, const std::string& gemm_algorithms = {});

  train::Trainer& trainer() { return *trainer_; }
  train::StepMemory& memory() { return *memory_; }
  kernels::Backend& backend() {
    if (graphs_) return *graphs_;
    return observed_ ? *observed_ : *backend_;
  }
  /// For an observed rank: reports all calls so far.
  void settle_observed() { observed_->settle(); }
  const DryRun& plan() const { return plan_; }
  const parallel::Layout& layout() const { return layout_; }
  const train::RankGroups& groups() const { return *groups_; }
  /// The choices of all ranks; empty if the job asks for none.
  const std::string& gemm_algorithms() const { return gemm_algorithms_; }

 private:
  parallel::Layout layout_;
  DryRun plan_;
  base::ThreadPool pool_;
  parallel::SingleRankWorld alone_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::ObservedBackend> observed_;
  std::unique_ptr<kernels::GraphBackend> graphs_;  ///< on a CUDA device, if the job asks for them
  std::string gemm_algorithms_;
  std::unique_ptr<train::StepMemory> memory_;
  std::unique_ptr<train::RankGroups> groups_;  // destroyed before memory that communication in progress uses
  std::unique_ptr<train::Trainer> trainer_;
};

/// The layout of a job on a topology.
parallel::Layout layout_of(const job::JobSpec& job, const parallel::Topology& topology);

}  // namespace trainerd::core::rank
