#include "core/run/agent/device_watch.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

struct DeviceWatch::State {
  base::UniqueFd event;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  Taken latest;

  void post(Taken taken) {
    const std::lock_guard lock(mutex);
    latest = std::move(taken);
    const std::uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof(one));
  }
  /// Returns true if the thread must end.
  bool sleep(double seconds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop; });
  }
  void run(const std::vector<std::string>& devices, double every_seconds, const std::string& library) {
    try {
      const kernels::Nvml nvml(library);
      do {
        Taken taken;
        for (const std::string& device : devices) taken.readings.push_back(nvml.read(device));
        post(std::move(taken));
      } while (!sleep(every_seconds));
    } catch (const base::DeviceError& error) {
      post({{}, error.what()});
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

DeviceWatch::DeviceWatch(std::vector<std::string> devices, double every_seconds, std::string library)
    : state_(std::make_shared<State>()) {
  state_->event = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state_->event) throw base::device_error("cannot make an event descriptor: " + base::errno_text(errno));
  std::thread([state = state_, devices = std::move(devices), every_seconds, library = std::move(library)] {
    state->run(devices, every_seconds, library);
  }).detach();
}

DeviceWatch::~DeviceWatch() {
  constexpr auto kPatience = std::chrono::seconds(1);
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->ended; });
}

int DeviceWatch::event_fd() const { return state_->event.get(); }

DeviceWatch::Taken DeviceWatch::take() {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t count = 0;
  (void)!::read(state_->event.get(), &count, sizeof(count));
  return std::exchange(state_->latest, {});
}

}  // namespace trainerd::core::run
