#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/observed_communicator.h"

namespace trainerd::parallel {

/// A collective of the meta world, reported once when it is issued and once when a stream waits for it. Work
/// on the stream between the two overlaps it, if `progress` is `background` or the device has streams.
/// `bytes` is the size of the tensor that is reduced, gathered into, or sent.
struct MetaCollective {
  CommMoment moment = CommMoment::issue;
  std::int64_t sequence = 0;  ///< per communicator, from 1; the same at issue and at wait
  OpKind kind = OpKind::barrier;
  const char* label = "";
  const char* stream = "";
  std::int64_t group_size = 1;
  std::int64_t bytes = 0;
  Progress progress = Progress::caller;
};

/// Moves no data and passes every call and wait to `observe`, which may be empty.
std::unique_ptr<Communicator> make_meta_communicator(std::int64_t rank, std::int64_t size,
                                                     std::function<void(const MetaCollective&)> observe);

}  // namespace trainerd::parallel
