#pragma once

// Expert parallelism: ranks share the experts of a layer. Each gathers the tokens of all, computes those of
// its own experts, and the ranks add up the results: all sizes of the communication are known before the
// step, whatever the router chooses (Megatron-LM's all-gather dispatcher).

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

struct ExpertParallel {
  Communicator* group = nullptr;  ///< null: this rank has all experts
  std::int64_t rows = 0;          ///< that the experts of this rank have memory for, in one microbatch

  std::int64_t ranks() const { return group != nullptr ? group->size() : 1; }
  std::int64_t rank() const { return group != nullptr ? group->rank() : 0; }
};

/// `x` [T, ...] of all ranks, in their order: `x` itself, or [ranks T, ...] in scratch.
kernels::Tensor gather_tokens(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& x,
                              const char* label);
/// The same to `to`.
void gather_tokens(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& x,
                   const kernels::Tensor& to, const char* label);

/// Memory for results for the tokens of all ranks: `to` [T, ...] itself, or in scratch.
kernels::Tensor take_results(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& to);
/// Adds up `results` of all ranks, and writes those for the rank's own tokens to `to`.
void sum_results(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& results,
                 const kernels::Tensor& to, const char* label);

}  // namespace trainerd::parallel
