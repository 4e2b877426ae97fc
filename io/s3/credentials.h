#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "io/http/http_client.h"
#include "io/s3/settings.h"

namespace trainerd::io {

/// The credentials that requests are signed by. They are looked for when the first is signed, and those that
/// expire are fetched again some minutes before. For several threads.
class Credentials {
 public:
  explicit Credentials(CredentialSources sources) : sources_(std::move(sources)) {}

  /// Throws SpecError: there are none, and where they were looked for; or a source is there and does not give
  /// them.
  AwsCredentials get();
  /// The store refused `used` as expired or unknown: looks for others. False: there are none others.
  bool renew(const AwsCredentials& used);
  /// How often they were fetched or read again.
  std::int64_t renewals() const { return renewals_; }
  /// From any thread: what is under way ends.
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

/// The time of "2026-11-23T01:02:03Z". Throws SpecError for anything else.
std::chrono::system_clock::time_point parse_utc(const std::string& text);

}  // namespace trainerd::io
