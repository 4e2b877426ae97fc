#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace trainerd::core::run {

/// What an agent serves, and where.
struct MetricsTarget {
  std::string address;  ///< as it was bound: "127.0.0.1:9464"
  std::string run;
  std::int64_t node = 0;
};

/// This host's name; empty where it has none.
std::string host_name();

/// Prometheus' file-based service discovery: one target with the labels `run`, `node` and `more`. An address
/// that stands for every address of the host is written as the host's name.
std::string target_text(const MetricsTarget& target, const std::map<std::string, std::string>& more = {});

/// Where a running agent serves its metrics: a file in the output directory, there while this lives.
class MetricsFile {
 public:
  /// A file that cannot be written is a warning.
  MetricsFile(std::string path, const MetricsTarget& target);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  /// The file is another agent's from now on.
  void disown() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace trainerd::core::run
