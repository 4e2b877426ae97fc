#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"

namespace trainerd::parallel {

/// The operations of a Communicator.
enum class OpKind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  barrier,
  exchange
};
const char* to_string(OpKind kind);
enum class ReduceOp : std::uint8_t { sum, max };
/// Which thread runs a collective on a device without streams. `caller`: the call itself, which is
/// quickest when the result is awaited next. `background`: a thread of the communicator, while the caller
/// goes on.
enum class Progress : std::uint8_t { caller, background };

struct CommOptions {
  const char* label = "";  ///< what it is for: shown in errors, traces and the ledger
  kernels::DType accumulate =
      kernels::DType::f32;  ///< each addition is made in it, or in the tensor's dtype if that is wider
  Progress progress = Progress::caller;
};

/// An operation on its way.
class Work {
 public:
  virtual ~Work() = default;
  /// What `stream` does next happens after the operation.
  virtual void wait(kernels::Stream& stream) = 0;
  /// Blocks the host; throws CommError when `deadline_seconds` pass first, naming the ranks that did not
  /// arrive.
  virtual void wait_host(double deadline_seconds) = 0;
};

struct Transfer {
  std::int64_t peer = 0;  ///< rank in this communicator
  kernels::Tensor tensor;
};

/// Collectives among the ranks of one group. Each call is ordered after what is on `stream`. It returns at
/// once, but that CommOptions::progress may have it run to its end. All ranks call the same operations in the
/// same order. Buffers stay untouched until the Work is waited for.
/// The order of summands is the same in every run: rank order, or of a communicator that says so (NCCL's) one
/// that the machines and libraries determine.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;

  virtual std::unique_ptr<Work> all_reduce(kernels::Stream&, const kernels::Tensor& x, ReduceOp,
                                           const CommOptions&) = 0;
  /// out = the ranks' `x`, one after the other along dim 0; `x` may be this rank's part of it.
  virtual std::unique_ptr<Work> all_gather(kernels::Stream&, const kernels::Tensor& x,
                                           const kernels::Tensor& out, const CommOptions&) = 0;
  /// out = this rank's part, along dim 0, of the sum of the ranks' `x`; it may be that part of `x`.
  virtual std::unique_ptr<Work> reduce_scatter(kernels::Stream&, const kernels::Tensor& x,
                                               const kernels::Tensor& out, const CommOptions&) = 0;
  virtual std::unique_ptr<Work> all_to_all(kernels::Stream&, const kernels::Tensor& x,
                                           const kernels::Tensor& out, const CommOptions&) = 0;
  virtual std::unique_ptr<Work> broadcast(kernels::Stream&, const kernels::Tensor& x, std::int64_t root,
                                          const CommOptions&) = 0;
  virtual std::unique_ptr<Work> barrier(kernels::Stream&, const CommOptions&) = 0;
  /// All sends and receives as one group: no order among them can deadlock.
  virtual std::unique_ptr<Work> exchange(kernels::Stream&, std::span<const Transfer> sends,
                                         std::span<const Transfer> receives, const CommOptions&) = 0;
  /// Ends every operation with a CommError, from any thread; the communicator is of no further use.
  virtual void abort() = 0;
};

}  // namespace trainerd::parallel
