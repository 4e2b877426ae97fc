#include "io/top/source.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "io/http/client.h"
#include "io/runs/run_directory.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr double kPageSeconds = 2;     // timeout if this answer is the only source
constexpr double kRanksSeconds = 0.5;  // timeout if the answer only adds to the logs

RunStatus fetch_status(const HttpAddress& address, double seconds) {
  const std::string text = http_get(address, "/status.json", seconds);
  try {
    return parse_run_status(text);
  } catch (const base::DataError& error) {
    throw base::data_error(address.text() + "/status.json: " + error.what());
  }
}

class UrlSource final : public StatusSource {
 public:
  explicit UrlSource(const std::string& url) : address_(parse_http_address(url)) {}

  StatusReading read() override {
    try {
      last_ = fetch_status(address_, kPageSeconds);
      read_at_ = base::monotonic_seconds();
      return {.status = *last_};
    } catch (const base::CommError& error) {
      if (!last_)
        throw base::comm_error(
            std::string(error.what()) +
            "; is the run still going on? its log and metrics.json say where it serves its "
            "metrics, and its output directory is an argument too");
      return {.status = *last_,
              .warning =
                  "as of " + short_duration(base::monotonic_seconds() - read_at_) + " ago: " + error.what()};
    }
  }

 private:
  HttpAddress address_;
  std::optional<RunStatus> last_;
  double read_at_ = 0;
};

std::string last_part(const std::string& path) {
  const std::filesystem::path clean = std::filesystem::path(path).lexically_normal();
  return clean.has_filename() ? clean.filename() : clean.parent_path().filename();
}

/// The logs do not contain ranks and memory, so a running run is asked for them over HTTP.
class DirectorySource final : public StatusSource {
 public:
  explicit DirectorySource(const std::string& path) : directory_(path) {}

  StatusReading read() override {
    StatusReading reading;
    try {
      directory_.update();
    } catch (const base::SpecError& error) {
      if (!read_) throw;
      reading.warning = error.what();
    }
    read_ = true;
    reading.status = directory_.status(base::wall_seconds());
    if (directory_.garbled_lines() > 0)
      reading.warning = std::to_string(directory_.garbled_lines()) + " lines of the logs are no records";
    if (is_alive(reading.status.state)) ask_the_run(reading);
    return reading;
  }

 private:
  void ask_the_run(StatusReading& reading) const {
    const std::string address = directory_.metrics_address();
    if (address.empty()) {
      reading.no_ranks = "the run serves no metrics: its ranks are not known";
      return;
    }
    try {
      RunStatus live = fetch_status(parse_http_address(address), kRanksSeconds);
      if (live.info.name != reading.status.info.name ||
          last_part(live.info.output) != last_part(reading.status.info.output)) {
        reading.no_ranks = "another run answers at " + address + ": the ranks are not known";
        return;
      }
      reading.status.ranks = std::move(live.ranks);
      reading.status.memory_planned_bytes = live.memory_planned_bytes;
      reading.status.memory_used_bytes = live.memory_used_bytes;
      reading.status.evaluation_progress = live.evaluation_progress;
      if (live.state == RunState::evaluating) reading.status.state = live.state;
    } catch (const base::Error& error) {
      reading.no_ranks = std::string("the ranks are not known: ") + error.what();
    }
  }

  RunDirectory directory_;
  bool read_ = false;
};

}  // namespace

std::unique_ptr<StatusSource> open_status_source(const std::string& url_or_directory) {
  const bool is_url =
      url_or_directory.find("://") != std::string::npos && !url_or_directory.starts_with("file:");
  if (is_url) return std::make_unique<UrlSource>(url_or_directory);
  return std::make_unique<DirectorySource>(url_or_directory);
}

}  // namespace trainerd::io
