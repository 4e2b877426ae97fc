#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace trainerd::core::run {

/// The metrics server of an agent.
struct MetricsTarget {
  std::string address;  ///< the bound address: "127.0.0.1:9464"
  std::string run;
  std::int64_t node = 0;
};

/// This host's name; empty if it has none.
std::string host_name();

/// A target in the format of Prometheus' file-based service discovery, with the labels `run`, `node` and
/// `more`. A wildcard address is replaced by the host's name.
std::string target_text(const MetricsTarget& target, const std::map<std::string, std::string>& more = {});

/// A file in the output directory with the address of a running agent's metrics server. Removed at the end.
class MetricsFile {
 public:
  /// A file that cannot be written is a warning.
  MetricsFile(std::string path, const MetricsTarget& target);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  /// Does not remove the file at the end: it belongs to another agent now.
  void disown() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace trainerd::core::run
