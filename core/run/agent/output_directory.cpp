#include "core/run/agent/output_directory.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <thread>
#include <variant>

#include "core/run/coordinator/coordinator.h"
#include "core/run/log/log.h"
#include "core/spec/spec.h"
#include "io/lines/log_lines.h"
#include "io/lines/step_log.h"
#include "io/metrics/event_log.h"
#include "io/metrics/report/page.h"
#include "io/records/records.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::run {
namespace {

[[noreturn]] void unwritable(const std::string& path, int error) {
  if (io::is_full_disk(error))
    throw base::checkpoint_error("the output directory's disk is full: " + path + ": " +
                                 base::errno_text(error) + "; free some space");
  if (error == ELOOP || error == EINVAL) throw io::open_error(path, error);
  throw base::spec_error("the output directory cannot be written: " + path + ": " + base::errno_text(error) +
                         "; set `output` to one that can");
}

constexpr auto kLookAgain = std::chrono::milliseconds(50);

std::string lock_file(const std::string& path) { return path + "/.lock"; }

/// Content of a small file; empty if it does not exist. Other errors are returned in `error`, after retries
/// for about 2 s.
std::string text_of(const std::string& path, int& error) {
  std::string text;
  error = io::with_retries([&]() -> int {
    const base::UniqueFd fd = base::open_regular(path);
    const std::int64_t bytes = fd ? base::file_bytes(fd.get()) : -1;
    if (bytes < 0) return errno;
    text.resize(static_cast<std::size_t>(bytes));
    const std::int64_t n = base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
    if (n < 0) return errno;
    text.resize(static_cast<std::size_t>(n));
    return 0;
  });
  if (error != 0) text.clear();
  if (io::is_absence(error)) error = 0;
  return text;
}

/// True if the open file is still the one at `path`: its directory may have been moved.
bool is_at(int fd, const std::string& path) {
  struct stat open {
  }, there{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

[[noreturn]] void taken_over(const std::string& path, std::int64_t epoch) {
  throw LeadLost("this agent does not lead the run any more: a later leader (" + std::to_string(epoch) +
                 ") has the output directory " + path);
}

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts)};
}

// Like text_of, but throws on errors.
std::string content_of(const std::string& path) {
  int error = 0;
  std::string text = text_of(path, error);
  if (error == EINVAL) throw io::open_error(path, error);
  if (error != 0)
    throw base::spec_error(path + ": cannot read: " + base::errno_text(error) + io::remedy_of(error, false));
  return text;
}

}  // namespace

MovedAside& MovedAside::operator=(MovedAside&& other) noexcept {
  std::swap(from_, other.from_), std::swap(to_, other.to_), std::swap(stays_, other.stays_);
  return *this;
}

void MovedAside::put_back() noexcept {
  if (stays_ || to_.empty()) return;
  try {
    if (!std::filesystem::is_directory(to_)) throw base::spec_error("it is not there any more");
    std::filesystem::remove_all(from_);
    std::filesystem::rename(to_, from_);
    log::info("the run did not begin: the output of the earlier run is at {} again", from_);
  } catch (const std::exception& error) {
    log::warn("the output of the earlier run was not put back from {}: {}", to_, error.what());
  }
}

OutputDirectory::OutputDirectory(const std::string& path, Earlier earlier,
                                 const std::optional<LeadMark>& lead)
    : path_(io::local_path(path)) {
  lock(lead);
  if (earlier == Earlier::moved_aside) move_aside();
  // An old mark in the lock file would let an earlier leader's successor take the directory from this run.
  if (lead || !content_of(lock_file(path_)).empty()) mark(lead ? lead->text() : "");
}

void OutputDirectory::lock(const std::optional<LeadMark>& lead) {
  const std::string file = lock_file(path_);
  // Another run may have moved the directory aside between the open and the lock.
  for (int tries = 0; tries < 10; ++tries) {
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    if (error) unwritable(path_, error.value());
    lock_ = base::open_shared(file);
    if (!lock_) unwritable(file, errno);
    int unread = 0;
    const auto before = LeadMark::parse(text_of(file, unread));
    const bool ours = lead && before && before->run == lead->run;
    const bool outdated = ours && before->epoch < lead->epoch;
    const bool held = ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0;
    // A lower epoch with a free lock comes from an etcd that has lost its data and counts from the start
    // again.
    if (held && ours && before->epoch > lead->epoch) taken_over(path_, before->epoch);
    if (held && !outdated)
      throw base::spec_error("another run is using " + path_ +
                             "; wait for it, or set `output` to another directory");
    if (held) take_lock_over(*lead);
    if (!is_at(lock_.get(), file)) continue;
    // A frozen or cut-off host may have lost its lock and still write to its logs.
    if (outdated) renew_logs();
    return;
  }
}

std::string OutputDirectory::keep_lock() {
  const std::string file = lock_file(path_);
  if (!lock_ || is_at(lock_.get(), file)) return "";
  int unread = 0;
  const std::string mark = text_of("/proc/self/fd/" + std::to_string(lock_.get()), unread);
  const auto ours = LeadMark::parse(mark), there = LeadMark::parse(text_of(file, unread));
  if (ours && there && there->run == ours->run && there->epoch > ours->epoch) taken_over(path_, there->epoch);
  base::UniqueFd again = base::open_shared(file);
  // If it cannot be opened, the next write reports it. It may have been out of sight for a moment only.
  if (!again || is_at(lock_.get(), file)) return "";
  if (::flock(again.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::spec_error("another run has begun to use " + path_ + ": its lock, " + file +
                           ", was removed or moved while this run held it");
  lock_ = std::move(again);
  if (!mark.empty()) this->mark(mark);
  return file +
         " was removed or moved while the run held it, perhaps with the whole directory: what was written "
         "before is where it was moved to, or lost; the lock was made again";
}

/// Replaces the lock file by a new one that this process holds.
void OutputDirectory::take_lock_over(const LeadMark& lead) {
  const std::string file = lock_file(path_), next = file + "." + std::to_string(lead.epoch);
  lock_ = base::open_shared(next);
  if (!lock_ || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) unwritable(next, errno);
  if (::rename(next.c_str(), file.c_str()) != 0) unwritable(file, errno);
}

void OutputDirectory::renew_logs() const {
  for (const std::string& log : {steps(), samples(), events()}) {
    std::error_code error;
    if (std::filesystem::symlink_status(log, error).type() != std::filesystem::file_type::regular) continue;
    const std::string copy = log + ".copy";
    std::filesystem::remove(copy, error);
    if (!std::filesystem::copy_file(log, copy, error)) unwritable(copy, error.value());
    if (::rename(copy.c_str(), log.c_str()) != 0) unwritable(log, errno);
  }
}

void OutputDirectory::move_aside() {
  std::error_code error;
  // For a symbolic link the target is renamed, so that the new directory is on the same disk.
  const std::filesystem::path real = std::filesystem::canonical(path_, error);
  bool empty = true;
  if (!error) {
    for (std::filesystem::directory_iterator entry(real, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename();
      std::error_code unknown;
      empty &=
          name == ".lock" || (name == "checkpoints" && std::filesystem::is_empty(entry->path(), unknown));
    }
  }
  if (error) unwritable(path_, error.value());
  if (empty) return;
  std::string to = real.string() + ".old-" + time_stamp();
  while (std::filesystem::exists(to, error)) to += "-again";
  if (::rename(real.c_str(), to.c_str()) != 0)
    throw base::spec_error("--fresh: cannot rename " + real.string() + " to " + to + ": " +
                           base::errno_text(errno) +
                           "; move it yourself, or set `output` to another directory");
  earlier_ = MovedAside(real.string(), to);
  std::filesystem::create_directories(real, error);
  if (error) unwritable(real, error.value());
  lock({});
}

std::optional<std::int64_t> OutputDirectory::recorded_step() const {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  std::optional<std::int64_t> last;
  const auto see = [&last](std::int64_t step) { last = std::max(last.value_or(0), step); };
  const io::StepLogPrefix log =
      io::read_step_log(steps(), kAll, [&](const io::StepRecord& record) { see(record.step); });
  if (!log.garbled.empty()) see(0);
  io::read_event_log(events(), kAll, [&](const io::EventRecord& event) {
    if (const auto* checkpoint = std::get_if<io::CheckpointRecord>(&event)) see(checkpoint->step);
  });
  return last;
}

std::int64_t OutputDirectory::last_whole_step() const {
  std::int64_t step = 0;
  io::read_step_log(steps(), std::numeric_limits<std::int64_t>::max(),
                    [&](const io::StepRecord& record) { step = std::max(step, record.step); });
  std::int64_t of_samples = 0;
  io::read_log_lines(samples(), [&](const std::string& line, bool torn) {
    if (torn) return false;
    try {
      of_samples = std::max(of_samples, io::parse_samples_record(line).step);
    } catch (const base::DataError&) {  // set aside by whoever opens the log
    }
    return true;
  });
  return std::min(step, of_samples);
}

bool OutputDirectory::records_no_checkpoint() const {
  std::int64_t events_seen = 0;
  std::set<std::string> saved;  // folders of valid checkpoints
  const auto folder = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  io::read_event_log(events(), std::numeric_limits<std::int64_t>::max(), [&](const io::EventRecord& event) {
    ++events_seen;
    if (const auto* checkpoint = std::get_if<io::CheckpointRecord>(&event))
      saved.insert(folder(checkpoint->path));
    const auto* notice = std::get_if<io::NoticeRecord>(&event);
    if (notice == nullptr || notice->kind != io::NoticeKind::withdrawn) return;
    // Message: "checkpoint PATH does not count any more: ...". The checkpoint's own record may already be
    // cut.
    const std::string& message = notice->message;
    saved.erase(folder(message.substr(0, message.find(" does not count any more"))));
  });
  return events_seen > 0 && saved.empty();
}

OutputDirectory OutputDirectory::marked(const std::string& path, const std::string& run, double seconds) {
  const std::string directory = io::local_path(path);
  const double deadline = base::monotonic_seconds() + seconds;
  int error = 0;
  const auto ours = LeadMark::parse(run);
  for (std::string text; (text = text_of(lock_file(directory), error)) != run;) {
    const auto mark = LeadMark::parse(text);
    if (ours && mark && mark->run == ours->run && mark->epoch > ours->epoch)
      taken_over(directory, mark->epoch);
    if (base::monotonic_seconds() > deadline)
      throw base::spec_error(
          "this node does not see node 0's output directory " + directory +
          (error == 0 ? "" : " (" + base::errno_text(error) + ")") +
          ": set `output` to a directory that all nodes share (NFS, Lustre), by the same path");
    std::this_thread::sleep_for(kLookAgain);
  }
  return {directory, Unlocked{}};
}

void OutputDirectory::require_mark(const LeadMark& lead) const {
  int error = 0;
  const auto mark = LeadMark::parse(text_of(lock_file(path_), error));
  if (mark && mark->text() != lead.text()) taken_over(path_, mark->epoch);
}

void OutputDirectory::mark(const std::string& run) const {
  int error = ::ftruncate(lock_.get(), 0) == 0 ? 0 : errno;
  if (error == 0 && ::lseek(lock_.get(), 0, SEEK_SET) < 0) error = errno;
  if (error == 0) error = base::write_all(lock_.get(), std::as_bytes(std::span(run)));
  // Without fsync a shared file system may not show it to the other nodes.
  if (error == 0 && ::fsync(lock_.get()) != 0) error = errno;
  if (error != 0) unwritable(lock_file(path_), error);
}

void OutputDirectory::write(const std::string& path, const std::string& text) const {
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0)
    unwritable(path, error);
}

void OutputDirectory::write_job(const job::JobSpec& job) const {
  write(path_ + "/job.yaml", spec::to_yaml(job));
}

std::string OutputDirectory::written_job() const { return content_of(path_ + "/job.yaml"); }

std::string OutputDirectory::gemm_algorithms() const { return content_of(gemm_algorithms_file()); }

void OutputDirectory::write_gemm_algorithms(const std::string& text) const {
  write(gemm_algorithms_file(), text);
}

bool OutputDirectory::report_is_current() const {
  std::error_code error;
  const auto report_time = std::filesystem::last_write_time(report(), error);
  if (error) return false;
  int unread = 0;
  if (text_of(report(), unread).find(io::kRunningTag) != std::string::npos || unread != 0) return false;
  const auto steps_time = std::filesystem::last_write_time(steps(), error);
  return error || report_time >= steps_time;
}

}  // namespace trainerd::core::run
