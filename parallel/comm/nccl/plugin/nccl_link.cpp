#include "parallel/comm/nccl/plugin/nccl_link.h"

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"

namespace trainerd::parallel {
namespace {

// NCCL starts the operations of a non-blocking communicator on a thread that it makes for each, in up to some
// hundred microseconds (the first one also connects). `settle` polls this long before it sleeps.
constexpr double kSpinSeconds = 300e-6;
constexpr std::chrono::microseconds kLinkPollInterval(20);
// A call that does not block holds the lock for less than this. One that blocks, on a full launch queue, is
// what an abort must end without the lock.
constexpr double kLockPatienceSeconds = 1;

}  // namespace

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* more = ncclGetLastError(comm);
  return std::string(ncclGetErrorString(result)) +
         (more != nullptr && *more != '\0' ? " (" + std::string(more) + ")" : "");
}

ncclResult_t NcclLink::settle(ncclResult_t result, const std::function<bool()>& go_on) {
  const double spin_until = base::monotonic_seconds() + kSpinSeconds;
  while (result == ncclInProgress && go_on()) {
    if (base::monotonic_seconds() < spin_until) std::this_thread::yield();
    else std::this_thread::sleep_for(kLinkPollInterval);
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return ncclInvalidUsage;
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) return asked;
  }
  return result;
}

void NcclLink::call(const char* doing, const std::function<ncclResult_t(ncclComm_t)>& act,
                    const std::function<void()>& interrupt) {
  interrupt();
  ncclResult_t result = ncclInvalidUsage;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) result = act(comm_);
  }
  result = settle(result, [&] {
    interrupt();
    return true;
  });
  if (result == ncclSuccess) [[likely]]
    return;
  interrupt();
  const std::lock_guard lock(mutex_);
  throw base::comm_error(
      std::string(doing) + ": " +
      (comm_ == nullptr ? "the communicator was aborted" : "NCCL says " + nccl_text(result, comm_)));
}

std::string NcclLink::error() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return "";
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? "" : nccl_text(state, comm_);
}

void NcclLink::abort() {
  const double patience = base::monotonic_seconds() + kLockPatienceSeconds;
  bool locked = mutex_.try_lock();
  while (!locked && base::monotonic_seconds() < patience) {
    std::this_thread::sleep_for(kLinkPollInterval);
    locked = mutex_.try_lock();
  }
  const ncclComm_t comm = std::exchange(comm_, nullptr);
  if (locked) mutex_.unlock();
  if (comm == nullptr) return;
  cudaSetDevice(device_);
  ncclCommAbort(comm);
}

bool NcclLink::finish(double deadline) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return true;
    result = ncclCommFinalize(comm_);
  }
  result = settle(result, [&] { return base::monotonic_seconds() < deadline; });
  if (result != ncclSuccess) return false;
  const std::lock_guard lock(mutex_);
  if (const ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) ncclCommDestroy(comm);
  return true;
}

}  // namespace trainerd::parallel
