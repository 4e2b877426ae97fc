#pragma once

#include <cstdint>

namespace trainerd::core {

/// What other software than this does otherwise in the same step: for the prediction of steps that it ran and others published.
struct OtherSoftware {
  /// Without sequence parallelism, a flow is sent in tp parts, each by one rank, and gathered inside the receiver's tp group
  /// (Narayanan et al. 2021, arXiv 2104.04473, section 4.1).
  bool scatter_flows = false;
  /// Tensor-parallel collectives of backward run behind a product beside them: the gather of a product's input behind its input
  /// gradient, the sum of that behind its weight gradient; and what one gathered the other reads (Korthikanti et al. 2022, arXiv
  /// 2205.05198, section 4.2.2).
  bool backward_tp_behind = false;
  /// The host awaits the device around each message between pipeline stages (Megatron-LM, megatron/p2p_communication.py: a
  /// synchronisation "to protect against race condition").
  bool messages_stop_host = false;
  /// Collectives in which a layer's parameters are gathered: one for each of its matrices.
  std::int64_t gathers_of_layer = 1;
};

}  // namespace trainerd::core
