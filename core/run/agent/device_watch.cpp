#include "core/run/agent/device_watch.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

// A wait for XIDs, after which a request to end is seen.
constexpr double kListenSeconds = 0.5;

}  // namespace

struct DeviceWatch::State {
  base::UniqueFd event;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  Taken latest;

  void post(Taken taken) {
    const std::lock_guard lock(mutex);
    if (!taken.readings.empty() || !taken.problem.empty()) latest.readings = std::move(taken.readings);
    latest.xids.insert(latest.xids.end(), taken.xids.begin(), taken.xids.end());
    if (!taken.problem.empty()) latest.problem = std::move(taken.problem);
    const std::uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof(one));
  }
  /// Returns true if the thread must end.
  bool sleep(double seconds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop; });
  }
  /// Posts the XIDs that come meanwhile. Whether it is time to end.
  bool listen(const kernels::Nvml& nvml, double seconds) {
    const double end = base::monotonic_seconds() + seconds;
    for (double now = base::monotonic_seconds(); now < end; now = base::monotonic_seconds()) {
      const double most = std::min(kListenSeconds, end - now);
      if (auto xid = nvml.next_xid(most)) post({{}, {*std::move(xid)}, {}});
      // A library that cannot wait returns at once.
      else if (sleep(std::max(0.0, now + most - base::monotonic_seconds()))) return true;
    }
    return sleep(0);
  }
  void run(const std::vector<std::string>& devices, double every_seconds, const std::string& library) {
    try {
      kernels::Nvml nvml(library);
      const bool listens = nvml.listen(devices);
      std::set<std::string> unread;  // devices whose failure was reported
      do {
        Taken taken;
        for (const std::string& device : devices) try {
            taken.readings.push_back(nvml.read(device));
          } catch (const base::DeviceError& error) {
            // The others are read on, and XIDs of all.
            kernels::DeviceReading none;
            none.pci_bus_id = device;
            taken.readings.push_back(std::move(none));
            if (unread.insert(device).second) taken.problem = error.what();
          }
        if (unread.size() == devices.size()) throw base::device_error(taken.problem);
        post(std::move(taken));
      } while (!(listens ? listen(nvml, every_seconds) : sleep(every_seconds)));
    } catch (const base::DeviceError& error) {
      post({{}, {}, error.what()});
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
