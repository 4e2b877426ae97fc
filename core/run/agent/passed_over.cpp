#include "core/run/agent/passed_over.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "core/run/log/log.h"
#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

std::optional<RunSeries::PassedOver> read_passed_over(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0 && io::is_absence(errno)) return std::nullopt;
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    const auto j = nlohmann::json::parse(text);
    return RunSeries::PassedOver{.step = j.at("step"), .cursor = j.at("cursor")};
  } catch (const nlohmann::json::exception& error) {
    throw base::checkpoint_error(
        path + ", which names the samples that the run passes over, cannot be read: " + error.what() +
        "; remove it to go on with the samples that the checkpoint names");
  }
}

void write_passed_over(const std::string& path, const std::optional<RunSeries::PassedOver>& passed) {
  int error = 0;
  if (passed) {
    const std::string text = nlohmann::json{{"step", passed->step}, {"cursor", passed->cursor}}.dump() + "\n";
    error = base::write_file_atomically(path, std::as_bytes(std::span(text)));
  } else if (::unlink(path.c_str()) != 0 && !io::is_absence(errno)) {
    error = errno;
  }
  if (error != 0) throw base::checkpoint_error(path + ": cannot be written: " + base::errno_text(error));
}

std::string pass_samples_over(RunSeries& series, const std::optional<RunSeries::PassedOver>& passed,
                              const std::string& path) {
  series.passed_over = passed;
  try {
    write_passed_over(path, passed);
  } catch (const base::CheckpointError& error) {
    return error.what();
  }
  return "";
}

std::optional<std::int64_t> cursor_after(RunSeries& series, std::int64_t step, const std::string& path) {
  if (!series.passed_over) series.passed_over = read_passed_over(path);
  if (!series.passed_over || series.passed_over->step < step) return std::nullopt;
  if (series.passed_over->step == step) return series.passed_over->cursor;
  log::warn(
      "the run begins before step {}, to which it had gone back: samples that were passed over there are "
      "read again",
      series.passed_over->step);
  series.passed_over.reset();
  write_passed_over(path, std::nullopt);
  return std::nullopt;
}

void keep_history(RunSeries& series, const SpikeHistory& history, std::int64_t step) {
  series.spikes_used = history.used;
  series.judged.clear();
  const auto count = static_cast<std::int64_t>(std::min(history.losses.size(), history.norms.size()));
  for (std::int64_t i = 0; i < count; ++i)
    series.judged.push_back({step - (count - 1 - i), history.losses[static_cast<std::size_t>(i)],
                             history.norms[static_cast<std::size_t>(i)]});
}

}  // namespace trainerd::core::run
