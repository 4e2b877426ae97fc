#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/tensor/tensor.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// The operation that a rank announces. All members of a group must announce the same one.
struct OpRecord {
  /// Number of the collective in its group, from 1; for a message, of those from its sender to its receiver.
  std::uint64_t sequence = 0;
  std::int64_t bytes = 0;  ///< of the input tensor
  std::uint64_t label_hash = 0;
  std::int32_t root = 0;
  OpKind kind = OpKind::barrier;
  kernels::DType dtype = kernels::DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  kernels::DType accumulate = kernels::DType::f32;
  std::array<char, 40> label{};  ///< truncated to fit, ends with a zero

  void set_label(std::string_view text);
  bool agrees_with(const OpRecord& other) const;
};
/// Of one message of an exchange.
OpRecord message_record(const kernels::Tensor& x, const char* label, std::uint64_t sequence);
/// `all_reduce "gradients" of 4096 bytes fp32`
std::string describe(const OpRecord& record);

/// A collective for an engine to run.
struct Operation {
  OpRecord record;
  kernels::Tensor x;
  kernels::Tensor out;
  std::uint64_t flight = 0;  ///< its number in the flight recorder
};

/// One receive of an exchange.
struct MessageTicket {
  std::int64_t peer = 0;
  std::uint64_t index = 0;  ///< among the receives from that peer
};

}  // namespace trainerd::parallel
