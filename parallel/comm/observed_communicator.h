#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// What the caller's stream does next: it issues an operation, awaits one, or goes on with its own work.
enum class CommMoment : std::uint8_t { issue, wait, done };
/// The call that issues or awaits. `bytes` are of the tensor that is reduced, gathered into, scattered from
/// or passed on; of an exchange, of all its sends and receives.
struct CommCall {
  OpKind kind = OpKind::barrier;
  const char* label = "";
  std::int64_t bytes = 0;
  /// While it is issued: what this rank gives, of an exchange the first; null: nothing, or another moment.
  const kernels::Tensor* sent = nullptr;
};
using ObserveComm = std::function<void(kernels::Stream&, CommMoment, const CommCall&)>;

/// A communicator that passes every call on to `inner` and calls `observe` before and after it, and around
/// every wait of a stream for its operations, so that a clock can measure the stalls. `inner` and what
/// `observe` refers to outlive it and its Works. An operation that throws has no `done`: the world has ended.
std::unique_ptr<Communicator> make_observed(Communicator& inner, ObserveComm observe);

}  // namespace trainerd::parallel
