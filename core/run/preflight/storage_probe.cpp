#include "core/run/preflight/storage_probe.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

std::string random_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::vector<std::byte> random_bytes() {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::byte> bytes(static_cast<std::size_t>(StorageProbe::kBytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

struct StorageProbe::State {
  const std::string directory;
  const Open open;
  const std::string prefix;
  const double begin = base::monotonic_seconds();
  const double limit;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by `mutex`:
  bool done = false;
  bool corrupt = false;
  std::string path, problem;

  State(std::string d, Open o, std::string p, double l)
      : directory(std::move(d)), open(std::move(o)), prefix(std::move(p)), limit(l) {}

  void run() {
    std::string what;
    bool differs = false;
    try {
      const auto storage = open();
      for (const std::string& left : storage->list(""))
        if (left.starts_with(prefix + "-")) storage->remove(left);
      const std::string name = prefix + "-" + random_name();
      {
        const std::scoped_lock lock(mutex);
        path = storage->path_of(name);
      }
      const std::vector<std::byte> bytes = random_bytes();
      storage->write(name, bytes);
      std::vector<std::byte> read(bytes.size());
      {
        const auto file = storage->open(name);
        file->forget_cached();
        file->read(0, read);
      }
      differs = read != bytes;
      if (!differs) storage->remove(name);
    } catch (const std::exception& error) {
      what = error.what();
    }
    const std::scoped_lock lock(mutex);
    done = true;
    corrupt = differs;
    problem = what;
    changed.notify_all();
  }
};

StorageProbe::StorageProbe(std::string directory, Open open, std::string prefix, double limit_seconds)
    : state_(
          std::make_shared<State>(std::move(directory), std::move(open), std::move(prefix), limit_seconds)) {
  std::thread([state = state_] { state->run(); }).detach();
}

StorageProbe::~StorageProbe() = default;

std::string StorageProbe::finding() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const double left = s.begin + s.limit - base::monotonic_seconds();
  s.changed.wait_for(lock, std::chrono::duration<double>(left), [&] { return s.done; });
  if (!s.done)
    return "storage: " + s.directory + ": 1 MiB was not written and read back within " +
           io::duration_text(s.limit);
  if (s.corrupt)
    throw base::checkpoint_error(s.path +
                                 ": other bytes were read than had been written: the storage corrupts " +
                                 "what it keeps; look at its health, or set `output` to another one");
  return s.problem.empty() ? "" : "storage: " + s.problem;
}

}  // namespace trainerd::core::run
