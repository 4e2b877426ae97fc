#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// What the caller's stream does next: issue an operation, wait for one, or continue with its own work.
enum class CommMoment : std::uint8_t { issue, wait, done };
/// The call that issues an operation or waits for it. `bytes` is the size of the tensor that is reduced,
/// gathered into, scattered from or broadcast; for an exchange, of all sends and receives.
struct CommCall {
  OpKind kind = OpKind::barrier;
  const char* label = "";
  std::int64_t bytes = 0;
  /// Only at `issue`: the tensor this rank sends, for an exchange the first one. Null: none, or another
  /// moment.
  const kernels::Tensor* sent = nullptr;
};
using ObserveComm = std::function<void(kernels::Stream&, CommMoment, const CommCall&)>;

/// A communicator that forwards every call to `inner`. It calls `observe` before and after each call, and
/// around every wait of a stream for its operations, so that a clock can measure stalls. `inner` and what
/// `observe` refers to must outlive it and its Works. If an operation throws there is no `done`: the world
/// has ended.
std::unique_ptr<Communicator> make_observed(Communicator& inner, ObserveComm observe);

}  // namespace trainerd::parallel
