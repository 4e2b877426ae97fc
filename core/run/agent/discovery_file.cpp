#include "core/run/agent/discovery_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "core/run/log/log.h"
#include "io/storage/storage.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::run {
namespace {

constexpr const char* kRecord = ".discovery-node-";
constexpr const char* kSuffix = ".json";

[[noreturn]] void cannot(const char* doing, const std::string& path, int error) {
  throw base::spec_error("metrics.discovery: cannot " + std::string(doing) + " " + path + ": " +
                         base::errno_text(error) +
                         "; give a directory that this user can write, or leave it out");
}

int write_text(const std::string& path, const std::string& text) {
  return base::write_file_atomically(path, std::as_bytes(std::span(text)));
}

/// Empty if the file cannot be read.
std::string text_of_record(const std::string& path) {
  const base::UniqueFd fd = base::open_regular(path);
  const std::int64_t bytes = fd ? base::file_bytes(fd.get()) : -1;
  if (bytes <= 0) return "";
  std::string text(static_cast<std::size_t>(bytes), '\0');
  const std::int64_t n = base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

/// Returns 0 also if there is no such file.
int unlink_file(const std::string& path) {
  return ::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
}

}  // namespace

std::string discovery_id(const std::string& run, std::int64_t node) {
  return run + "-node" + std::to_string(node) + "-" + host_name() + "-" + std::to_string(::getpid());
}

// The id is the first part of the path because a server answers all paths below one that it serves.
std::string discovery_metrics_path(const std::string& id) { return "/" + id + "/metrics"; }

std::string discovery_record(const std::string& output, std::int64_t node) {
  return output + "/" + kRecord + std::to_string(node);
}

DiscoveryFile::DiscoveryFile(const std::string& directory, const std::string& id, std::string record,
                             MetricsTarget target)
    : record_(std::move(record)), metrics_path_(discovery_metrics_path(id)), target_(std::move(target)) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(io::local_path(directory), error);
  if (error) cannot("find", directory, error.value());
  path_ = (absolute / (id + kSuffix)).lexically_normal().string();
  std::filesystem::create_directories(absolute, error);
  if (error) cannot("make", absolute.string(), error.value());
  // The record first: a discovery file without a record would never be removed.
  if (const int failed = write_text(record_, path_); failed != 0) cannot("write", record_, failed);
  const int failed = write_text(path_, target_text(target_, {{"__metrics_path__", metrics_path_}}));
  if (failed == 0) return;
  ::unlink(record_.c_str());
  cannot("write", path_, failed);
}

DiscoveryFile::~DiscoveryFile() {
  if (left_) return;
  if (const int error = unlink_file(path_); error != 0)
    log::warn("{} cannot be removed: {}", path_, base::errno_text(error));
  else ::unlink(record_.c_str());
}

void DiscoveryFile::leave(base::ErrorKind kind) {
  if (std::exchange(left_, true)) return;
  const std::string text =
      target_text(target_, {{"__metrics_path__", metrics_path_}, {"ended", base::to_string(kind)}});
  if (const int error = write_text(path_, text); error != 0)
    log::warn("{} cannot be written: {}", path_, base::errno_text(error));
}

void remove_left_discovery_files(const std::string& output) {
  std::vector<std::string> records;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(output, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().filename().string().starts_with(kRecord)) records.push_back(entry->path().string());
  for (const std::string& record : records) {
    const std::string path = text_of_record(record);
    const int failed = path.ends_with(kSuffix) ? unlink_file(path) : 0;
    if (failed == 0) ::unlink(record.c_str());
    else log::warn("{}, which an earlier run left, cannot be removed: {}", path, base::errno_text(failed));
  }
}

}  // namespace trainerd::core::run
