#include "io/metrics/report/page_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenTries = std::chrono::milliseconds(100);

}  // namespace

struct PageWriter::State {
  std::string path, name;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> next;
  bool writing = false, stop = false;
  int error = 0;  // of the latest write
  std::int64_t failures = 0;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return next || stop; });
      if (!next) return;
      const std::string page = *std::exchange(next, std::nullopt);
      writing = true;
      lock.unlock();
      const int result = base::write_file_atomically(path, std::as_bytes(std::span(page)));
      lock.lock();
      writing = false;
      error = result;
      failures += error != 0 ? 1 : 0;
      changed.notify_all();
    }
  }
};

PageWriter::PageWriter(std::string path, std::string name) : state_(std::make_shared<State>()) {
  state_->path = std::move(path);
  state_->name = std::move(name);
  std::thread([state = state_] { state->run(); }).detach();
}

PageWriter::~PageWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void PageWriter::write(std::string page) {
  const std::lock_guard lock(state_->mutex);
  state_->next = std::move(page);
  state_->changed.notify_all();
}

void PageWriter::write_last(std::string page, double seconds) {
  State& s = *state_;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::unique_lock lock(s.mutex);
  std::string why = "the disk does not answer";
  for (;;) {
    s.next = page;
    s.changed.notify_all();
    if (!s.changed.wait_until(lock, end, [&s] { return !s.next && !s.writing; })) break;
    if (s.error == 0) return;
    why = base::errno_text(s.error);
    if (Clock::now() + kBetweenTries >= end) break;
    lock.unlock();
    std::this_thread::sleep_for(kBetweenTries);
    lock.lock();
  }
  throw base::spec_error(s.path + ": cannot be written: " + why +
                         "; free some space or set output: to another directory");
}

OutletRecord PageWriter::record() const {
  const std::lock_guard lock(state_->mutex);
  return {.name = state_->name,
          .failures = state_->failures,
          .error = state_->error == 0 ? "" : base::errno_text(state_->error)};
}

}  // namespace trainerd::io
