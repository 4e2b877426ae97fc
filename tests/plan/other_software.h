#pragma once

#include <cstdint>

#include "core/plan/predict/plan.h"

namespace trainerd::test {

/// What other software does differently in the same step, for the prediction of published steps that it ran.
struct OtherSoftware {
  /// Without sequence parallelism, a flow is sent in tp parts, each by one rank, and gathered inside the
  /// receiver's tp group (Narayanan et al. 2021, arXiv 2104.04473, section 4.1).
  bool scatter_flows = false;
  /// The host awaits the device around each message between pipeline stages (Megatron-LM,
  /// megatron/p2p_communication.py: a synchronisation "to protect against race condition").
  bool messages_stop_host = false;
  /// Data-parallel ranks are one group, whatever the nodes they are on.
  bool one_level = false;
  /// Collectives in which ZeRO gathers a layer's parameters and scatters its gradients: one for each of its
  /// matrices.
  std::int64_t collectives_of_layer = 1;
  /// Part of a layer's parameters that is gathered once more between its second forward and its backward,
  /// where it is recomputed.
  double gathered_again = 0;
  /// Of the host for each rank's part in such a collective: it stands still until the parts, tensors of their
  /// own, are listed and copied one by one from the buffer that the library filled (of gradients: to the one
  /// that it reads). 0: one tensor for all.
  double part_seconds = 0;
  /// Bytes that are held for each logit at once: of all tokens and the whole vocabulary, where this software
  /// takes parts of them. 0: as here.
  std::int64_t logit_bytes = 0;
};

/// What it changes in the plan of `job` on `topology`.
core::plan::PlanChanges changes_of(const OtherSoftware& other, const core::job::JobSpec& job,
                                   const parallel::Topology& topology);

}  // namespace trainerd::test
