#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::parallel {

/// "unhandled system error (a message of NCCL's own)".
std::string nccl_text(ncclResult_t result, ncclComm_t comm);

/// Owns one ncclComm_t, which never blocks. Calls come from any thread, one at a time; an abort from any, at
/// any time.
class NcclLink {
 public:
  NcclLink(ncclComm_t comm, int device) : comm_(comm), device_(device) {}
  /// Aborts what was not finished.
  ~NcclLink() { abort(); }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Calls `act(comm)` and waits until NCCL has started what it asked for. Throws CommError with NCCL's
  /// words; what `interrupt` throws, which is asked while this waits; CommError when it was aborted.
  void call(const char* doing, const std::function<ncclResult_t(ncclComm_t)>& act,
            const std::function<void()>& interrupt);
  /// An error that NCCL found by itself; empty: none.
  std::string error();
  /// Ends what is under way, here and soon on the device. It may wait for the device.
  void abort();
  /// Finalises: false when peers or the device did not let it by `deadline` (base::monotonic_seconds).
  bool finish(double deadline);

 private:
  /// What is under way until it is started: ncclInProgress no longer.
  ncclResult_t settle(ncclResult_t result, const std::function<bool()>& go_on);

  std::mutex mutex_;
  ncclComm_t comm_;
  int device_;
};

}  // namespace trainerd::parallel
