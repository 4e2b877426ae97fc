#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace trainerd::parallel {

/// One collective as the meta world saw it. `bytes` is the size of the tensor reduced, gathered into, or sent.
struct MetaCollective {
  const char* op = "";
  std::string label;
  std::string stream;
  std::int64_t group_size = 1;
  std::int64_t bytes = 0;
};

/// Moves nothing and passes every call to `observe`.
std::unique_ptr<Communicator> make_meta_communicator(std::int64_t rank, std::int64_t size,
                                                     std::function<void(const MetaCollective&)> observe);

}  // namespace trainerd::parallel
