#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/s3/settings.h"

namespace trainerd::io {

struct S3Path {
  std::string bucket, key;

  std::string text() const { return "s3://" + bucket + "/" + key; }
};
/// True for "s3://...".
bool is_s3(const std::string& path);
/// Splits "s3://bucket/key"; the key may be empty. Throws SpecError for another text or an invalid bucket
/// name.
S3Path parse_s3(const std::string& uri);

/// Says what went wrong and what to do. The caller rethrows it as its own typed error.
struct S3Error : std::runtime_error {
  enum class Kind : unsigned char {
    absent,       ///< no such bucket or object
    denied,       ///< the credentials are not sufficient
    changed,      ///< the object was replaced
    unavailable,  ///< all retries failed
    stopped,      ///< ended by `S3Client::stop`
    refused,      ///< anything else
  };
  S3Error(Kind of, const std::string& message) : std::runtime_error(message), kind(of) {}
  Kind kind;
};

struct S3Object {
  std::string key;
  std::int64_t bytes = 0;
  std::string etag;  ///< as the store sends it, with quotes
};

/// An unfinished multipart upload.
struct S3Upload {
  std::string key, id;
};
struct S3Part {
  std::int64_t bytes = 0;
  std::string etag;
};

/// Counters since the client was made.
struct S3Counters {
  std::int64_t requests = 0;    ///< including retries
  std::int64_t retries = 0;     ///< tries after one that failed
  std::int64_t bytes_read = 0;  ///< object data
  std::int64_t renewals = 0;    ///< renewals of credentials
};

/// Client of an S3-compatible store. Retries requests after a lost or silent connection, a timeout, 429 or
/// 5xx, with random waits whose bound doubles up to 20 s. Renews expired credentials. All functions throw
/// S3Error naming bucket and key, or SpecError without credentials. Thread-safe; each thread has its own
/// connection.
class S3Client {
 public:
  /// Throws SpecError if libcurl is missing.
  explicit S3Client(S3Settings settings);
  ~S3Client();

  /// Returns none if there is no such object.
  std::optional<S3Object> head(const S3Path& path);
  /// Fills `out` from `offset`. With an `etag` it fails with Kind::changed if the object was replaced.
  void get(const S3Path& path, const std::string& etag, std::int64_t offset, std::span<std::byte> out);
  /// Lists all objects whose keys begin with `prefix`, sorted by the bytes of their keys.
  std::vector<S3Object> list(const std::string& bucket, const std::string& prefix);
  /// Lists the names directly below `prefix` (files and folders), up to the next slash of each key, sorted.
  std::vector<std::string> list_names(const std::string& bucket, const std::string& prefix);
  void put(const S3Path& path, std::span<const std::byte> bytes);
  /// A missing object is no error.
  void remove(const S3Path& path);

  /// Multipart upload. Parts are numbered from 1; all but the last have at least 5 MiB. `upload_part` returns
  /// its ETag.
  std::string begin_upload(const S3Path& path);
  std::string upload_part(const S3Path& path, const std::string& upload, int number,
                          std::span<const std::byte> bytes);
  /// The object appears only when the upload is complete.
  void complete_upload(const S3Path& path, const std::string& upload, const std::vector<std::string>& etags);
  /// Lists unfinished uploads of keys with this prefix.
  std::vector<S3Upload> uploads(const std::string& bucket, const std::string& prefix);
  /// Lists the uploaded parts by number.
  std::map<int, S3Part> parts(const S3Path& path, const std::string& upload);
  /// Discards the uploaded parts.
  void abort_upload(const S3Path& path, const std::string& upload);

  S3Counters counters() const;
  /// Makes current and later requests fail with Kind::stopped, within about a second. Thread-safe.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
