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
/// Which thread runs a collective on a device without streams. `caller`: the calling thread, which is fastest
/// if the result is needed next. `background`: a thread of the communicator, while the caller continues.
enum class Progress : std::uint8_t { caller, background };

struct CommOptions {
  const char* label = "";                           ///< purpose, shown in errors, traces and the ledger
  kernels::DType accumulate = kernels::DType::f32;  ///< dtype of each addition, unless the tensor's is wider
  Progress progress = Progress::caller;
};

/// An operation in progress.
class Work {
 public:
  virtual ~Work() = default;
  /// Orders what `stream` does next after the operation.
  virtual void wait(kernels::Stream& stream) = 0;
  /// Blocks the host until the operation is done. After `deadline_seconds` throws CommError, which names the
  /// ranks that did not arrive.
  virtual void wait_host(double deadline_seconds) = 0;
};

struct Transfer {
  std::int64_t peer = 0;  ///< rank in this communicator
  kernels::Tensor tensor;
};

/// Collectives among the ranks of one group. Each call is ordered after earlier work on `stream` and returns
/// at once, except that CommOptions::progress may run it to its end. All ranks call the same operations in
/// the same order. Buffers must not be changed until the Work is waited for.
/// The order of summands is the same in every run. It is rank order, unless a communicator documents another
/// one: NCCL's depends on machines and libraries.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;

  virtual std::unique_ptr<Work> all_reduce(kernels::Stream&, const kernels::Tensor& x, ReduceOp,
                                           const CommOptions&) = 0;
  /// out = the `x` of all ranks, concatenated along dim 0. `x` may be this rank's part of `out`.
  virtual std::unique_ptr<Work> all_gather(kernels::Stream&, const kernels::Tensor& x,
                                           const kernels::Tensor& out, const CommOptions&) = 0;
  /// out = this rank's part, along dim 0, of the sum of all ranks' `x`. `out` may be that part of `x`.
  virtual std::unique_ptr<Work> reduce_scatter(kernels::Stream&, const kernels::Tensor& x,
                                               const kernels::Tensor& out, const CommOptions&) = 0;
  virtual std::unique_ptr<Work> all_to_all(kernels::Stream&, const kernels::Tensor& x,
                                           const kernels::Tensor& out, const CommOptions&) = 0;
  virtual std::unique_ptr<Work> broadcast(kernels::Stream&, const kernels::Tensor& x, std::int64_t root,
                                          const CommOptions&) = 0;
  virtual std::unique_ptr<Work> barrier(kernels::Stream&, const CommOptions&) = 0;
  /// Runs all sends and receives as one group, so that their order cannot cause a deadlock.
  virtual std::unique_ptr<Work> exchange(kernels::Stream&, std::span<const Transfer> sends,
                                         std::span<const Transfer> receives, const CommOptions&) = 0;
  /// Ends every operation with CommError. Any thread. The communicator cannot be used afterwards.
  virtual void abort() = 0;
};

}  // namespace trainerd::parallel
