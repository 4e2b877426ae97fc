#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/observed_communicator.h"

namespace trainerd::parallel {

/// A collective as the meta world saw it, once when it was issued and once when a stream came to wait for it:
/// what ran on the stream between the two was beside it, if `progress` is `background` or the device has
/// streams of its own. `bytes` is the size of the tensor reduced, gathered into, or sent.
struct MetaCollective {
  CommMoment moment = CommMoment::issue;
  std::int64_t sequence =
      0;  ///< of the communicator, from 1: what is awaited has the number it was issued with
  OpKind kind = OpKind::barrier;
  const char* label = "";
  const char* stream = "";
  std::int64_t group_size = 1;
  std::int64_t bytes = 0;
  Progress progress = Progress::caller;
};

/// Moves nothing and passes every call and wait to `observe`, which may be empty.
std::unique_ptr<Communicator> make_meta_communicator(std::int64_t rank, std::int64_t size,
                                                     std::function<void(const MetaCollective&)> observe);

}  // namespace trainerd::parallel
