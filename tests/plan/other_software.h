#pragma once

#include <cstdint>

#include "core/plan/predict/plan.h"

namespace trainerd::test {

/// Differences of other software in the same step, for predicting its published steps.
struct OtherSoftware {
  /// Without sequence parallelism, a flow is sent in tp parts, each by one rank, and gathered inside the
  /// receiver's tp group (Narayanan et al. 2021, arXiv 2104.04473, section 4.1).
  bool scatter_flows = false;
  /// The host awaits the device around each message between pipeline stages (Megatron-LM,
  /// megatron/p2p_communication.py: a synchronisation "to protect against race condition").
  bool messages_stop_host = false;
  /// Data-parallel ranks are one group, whatever the nodes they are on.
  bool one_level = false;
  /// Number of collectives with which ZeRO gathers a layer's parameters or scatters its gradients: one per
  /// matrix.
  std::int64_t collectives_of_layer = 1;
  /// Fraction of a layer's parameters that is gathered again between its second forward and its backward if
  /// the layer is recomputed.
  double gathered_again = 0;
  /// Host seconds per rank's part in such a collective. The host waits while the parts, which are separate
  /// tensors, are listed and copied one by one from the library's buffer (gradients: into it). 0: one tensor
  /// for all parts.
  double part_seconds = 0;
  /// Bytes per logit for all tokens and the whole vocabulary at once, which trainerd computes in parts. 0: in
  /// parts, as trainerd.
  std::int64_t logit_bytes = 0;
  /// Time of norms, rotations and residual additions as a multiple of trainerd's: without torch.compile each
  /// is several operators that read and write all elements, partly in fp32.
  double elementwise = 1;
  /// FP8 with one scale for a tensor: activations and their gradients are read once more for their maximum,
  /// on which the rounding depends.
  bool scales_by_maximum = false;
};

/// The changes to the plan of `job` on `topology`.
core::plan::PlanChanges changes_of(const OtherSoftware& other, const core::job::JobSpec& job,
                                   const parallel::Topology& topology);

}  // namespace trainerd::test
