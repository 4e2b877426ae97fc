#pragma once

#include <cstdint>
#include <string>

namespace trainerd::core {

/// Where a running agent serves its metrics: a file of Prometheus' file-based service discovery (one target
/// with the labels `run` and `node`), there while this lives.
class MetricsFile {
 public:
  /// `address`: "127.0.0.1:9464"; one that stands for every address of the host is written as the host's
  /// name. A file that cannot be written is a warning.
  MetricsFile(std::string path, const std::string& address, const std::string& run, std::int64_t node);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  std::string path_;
};

}  // namespace trainerd::core
