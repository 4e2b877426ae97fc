#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "io/http/http_client.h"
#include "io/s3/settings.h"

namespace trainerd::io {

/// The credentials that sign requests. They are looked up for the first request. Expiring ones are renewed
/// some minutes before. Thread-safe.
class Credentials {
 public:
  explicit Credentials(CredentialSources sources) : sources_(std::move(sources)) {}

  /// Throws SpecError if there are none, naming where they were looked for, or if a configured source fails.
  AwsCredentials get();
  /// Looks for new credentials after the store refused `used` as expired or unknown. Returns false if there
  /// are none.
  bool renew(const AwsCredentials& used);
  /// Number of times they were fetched or read again.
  std::int64_t renewals() const { return renewals_; }
  /// Aborts requests in progress. Thread-safe.
  void abort() { http_.abort(); }

 private:
  AwsCredentials find();
  std::optional<AwsCredentials> of_profile() const;
  AwsCredentials of_container();
  std::optional<AwsCredentials> of_instance();
  HttpResponse ask(const std::string& url, const std::string& method, const std::string& header);

  CredentialSources sources_;
  std::mutex mutex_;
  HttpClient http_;
  std::optional<AwsCredentials> known_;
  double tried_at_ = -1e9;  ///< monotonic seconds
  std::atomic<std::int64_t> renewals_ = 0;
};

/// Parses a time such as "2026-11-23T01:02:03Z". Throws SpecError for another format.
std::chrono::system_clock::time_point parse_utc(const std::string& text);

}  // namespace trainerd::io
