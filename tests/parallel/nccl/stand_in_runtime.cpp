#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda_runtime_api.h"

namespace {

/// Shared by the stream's owner and its thread, which ends when the owner is gone and all work is done.
struct StreamState {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool closed = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }
};

/// How often an event was recorded, and how many of these records streams have reached.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  long recorded = 0, done = 0;

  void wait(long number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
  }
};

thread_local int current_device = 0;

}  // namespace

struct StandInStream {
  std::shared_ptr<StreamState> state = std::make_shared<StreamState>();
};
struct StandInEvent {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

void trainerd::test::enqueue(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(stream->state->mutex);
  stream->state->work.push_back(std::move(work));
  stream->state->changed.notify_all();
}

using trainerd::test::enqueue;

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t) { return "stand-in runtime"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return current_device = device, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new StandInStream;
  std::thread([state = (*stream)->state] { state->run(); }).detach();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(stream->state->mutex);
    stream->state->closed = true;
    stream->state->changed.notify_all();
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(event->state->mutex);
  // Waits for the current record: a later one marks another point.
  enqueue(stream, [state = event->state, number = event->state->recorded] { state->wait(number); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new StandInEvent, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(event->state->mutex);
  enqueue(stream, [state = event->state, number = ++event->state->recorded] {
    const std::lock_guard again(state->mutex);
    state->done = std::max(state->done, number);
    state->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(event->state->mutex);
  return event->state->done >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  long number = 0;
  {
    const std::lock_guard lock(event->state->mutex);
    number = event->state->recorded;
  }
  return event->state->wait(number), cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
