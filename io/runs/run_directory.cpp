#include "io/runs/run_directory.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "io/runs/log_follower.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "io/text/json.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

// Silence after which a run without a lock holder counts as lost. An evaluation or a slow file system may
// take as long. A lock held on another host is not visible here.
constexpr double kSilentSeconds = 300;
// For a connection within this host.
constexpr int kAnswerMilliseconds = 500;

// Returns an empty text if there is no such file.
std::string file_text(const std::string& path) {
  const base::UniqueFd fd = base::open_regular(path);
  if (!fd) {
    if (is_absence(errno)) return "";
    throw base::spec_error(path + ": cannot read: " + base::errno_text(errno) + remedy_of(errno, false));
  }
  const std::int64_t bytes = base::file_bytes(fd.get());
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(0, bytes)), '\0');
  const std::int64_t got = base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  if (bytes < 0 || got < 0) throw base::spec_error(path + ": cannot read: " + base::errno_text(errno));
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// Reads /proc/locks ("1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF"). Taking a lock to test it would block a
// run that starts at that moment.
bool is_locked(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  std::ifstream locks("/proc/locks");
  const std::string inode = ":" + std::to_string(status.st_ino);
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, mode, access, pid, file;
    words >> number >> kind >> mode >> access >> pid >> file;
    // Only the inode is compared: with an overlay the device number is that of the underlying file system.
    if (kind == "FLOCK" && access == "WRITE" && file.ends_with(inode)) return true;
  }
  return false;
}

bool is_this_host(const std::string& name) {
  std::array<char, 256> here{};
  return ::gethostname(here.data(), here.size() - 1) == 0 && !name.empty() && name == here.data();
}

/// Returns true if nothing listens at an address of this host ("127.0.0.1:9464"). False if not known.
bool refuses(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  bool refused = found != nullptr;
  for (const addrinfo* at = found; at != nullptr && refused; at = at->ai_next) {
    const base::UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = fd && ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    pollfd waits{fd.get(), POLLOUT, 0};
    if (error == EINPROGRESS && ::poll(&waits, 1, kAnswerMilliseconds) == 1) {
      socklen_t size = sizeof(error);
      if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    refused = error == ECONNREFUSED;
  }
  return refused;
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

struct RunDirectory::State {
  std::string path;
  LogFollower steps, events;
  std::string facts;  // latest text of run.json
  RunHistory history;
  std::int64_t garbled = 0;
  double last_record = 0;  // wall time

  explicit State(const std::string& at)
      : path(at), steps(at + "/steps.jsonl"), events(at + "/events.jsonl") {}

  void read_facts() {
    std::string text = file_text(path + "/run.json");
    if (text.empty() || text == facts) return;
    RunInfo info;
    PredictionRecord prediction;
    try {
      parse_run_json(text, info, prediction);
    } catch (const base::DataError&) {
      ++garbled;
      return;
    }
    facts = std::move(text);
    history.set_info(info);
    history.set_prediction(prediction);
  }

  void see(double wall_time) { last_record = std::max(last_record, wall_time); }

  void read_step(const std::string& line, const std::function<void(const StepRecord&)>& each) {
    try {
      const StepRecord record = parse_step_record(line);
      see(record.wall_time);
      history.add(record);
      if (each) each(record);
    } catch (const base::DataError&) {
      ++garbled;
    }
  }

  void read_event(const std::string& line) {
    try {
      std::visit(
          [this](const auto& record) {
            see(record.wall_time);
            history.add(record);
          },
          parse_event_record(line));
    } catch (const base::DataError&) {
      ++garbled;
    }
  }
};

RunDirectory::RunDirectory(const std::string& path) {
  const std::string directory = local_path(path);
  std::error_code error;
  const auto kind = std::filesystem::status(directory, error).type();
  if (kind == std::filesystem::file_type::not_found)
    throw base::spec_error(path + ": there is no such directory; give the output directory of a run");
  if (kind != std::filesystem::file_type::directory)
    throw base::spec_error(path + " is " +
                           (error ? "not to be read: " + error.message() : std::string("no directory")) +
                           "; give the output directory of a run");
  state_ = std::make_unique<State>(directory);
  const auto has = [&](const char* name) { return is_there(directory + "/" + name); };
  if (!has("job.yaml") && !has("steps.jsonl") && !has("events.jsonl") && !has("run.json"))
    throw base::spec_error(path +
                           " is not the output directory of a run: it has no job.yaml, steps.jsonl, "
                           "events.jsonl or run.json");
}

RunDirectory::~RunDirectory() = default;
RunDirectory::RunDirectory(RunDirectory&&) noexcept = default;

const std::string& RunDirectory::path() const { return state_->path; }
const RunHistory& RunDirectory::history() const { return state_->history; }
std::int64_t RunDirectory::garbled_lines() const { return state_->garbled; }

void RunDirectory::update(const std::function<void(const StepRecord&)>& each) {
  State& s = *state_;
  // A resumed run truncates its logs, so everything read so far is invalid.
  const bool steps = s.steps.replaced(), events = s.events.replaced();
  if (steps || events) s = State(s.path);
  s.read_facts();
  s.events.read([&s](const std::string& line) { s.read_event(line); });
  s.steps.read([&](const std::string& line) { s.read_step(line, each); });
}

RunStatus RunDirectory::status(double now) const {
  const State& s = *state_;
  RunStatus status = s.history.status(now);
  if (status.info.name.empty())
    status.info.name = std::filesystem::path(s.path).lexically_normal().filename().string();
  if (status.info.output.empty()) status.info.output = s.path;
  const auto is_gone = [&] {
    if (is_locked(s.path + "/.lock")) return false;
    if (now - s.last_record > kSilentSeconds) return true;
    return is_this_host(status.info.host) && refuses(metrics_address());
  };
  if (is_alive(status.state) && is_gone()) {
    status.state = RunState::lost;
    status.eta_seconds.reset();
    status.outcome = s.last_record > 0 ? "no end is recorded; the last record is " +
                                             short_duration(now - s.last_record) + " old"
                                       : "it has no records";
    if (s.last_record > status.began && status.began > 0) status.seconds = s.last_record - status.began;
  }
  return status;
}

std::string RunDirectory::job_yaml() const { return file_text(state_->path + "/job.yaml"); }

std::string RunDirectory::metrics_address() const {
  const std::string text = file_text(state_->path + "/metrics.json");
  if (text.empty()) return "";
  try {
    const nlohmann::json list = parse_json(text);
    if (!list.is_array() || list.empty()) return "";
    const nlohmann::json& targets = member(list[0], "targets");
    return targets.is_array() && !targets.empty() && targets[0].is_string() ? targets[0].get<std::string>()
                                                                            : "";
  } catch (const JsonError&) {
    return "";  // written by another version
  }
}

}  // namespace trainerd::io
