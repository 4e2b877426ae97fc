#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::parallel {

/// NCCL's error string, with its last message: "unhandled system error (details)".
std::string nccl_text(ncclResult_t result, ncclComm_t comm);

/// Owns one non-blocking ncclComm_t. Calls may come from any thread, one at a time. `abort` may come from any
/// thread at any time.
class NcclLink {
 public:
  NcclLink(ncclComm_t comm, int device) : comm_(comm), device_(device) {}
  /// Aborts unless it was finished.
  ~NcclLink() { abort(); }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Calls `act(comm)` and waits until NCCL has started the operation, calling `interrupt` meanwhile. Throws
  /// CommError with NCCL's message or after an abort, and anything that `interrupt` throws.
  void call(const char* doing, const std::function<ncclResult_t(ncclComm_t)>& act,
            const std::function<void()>& interrupt);
  /// An asynchronous error that NCCL reports; empty: none.
  std::string error();
  /// Ends the operations in progress on the host, and soon after on the device. May wait for the device.
  void abort();
  /// Finalises the communicator. False if peers or the device prevent that until `deadline`
  /// (base::monotonic_seconds).
  bool finish(double deadline);

 private:
  /// Waits until `result` is no longer ncclInProgress, or `go_on` returns false.
  ncclResult_t settle(ncclResult_t result, const std::function<bool()>& go_on);

  std::mutex mutex_;
  ncclComm_t comm_;
  int device_;
};

}  // namespace trainerd::parallel
