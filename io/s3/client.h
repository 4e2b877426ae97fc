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
/// Whether a path is of an object store: "s3://...".
bool is_s3(const std::string& path);
/// The parts of "s3://bucket/key"; the key may be empty. Throws SpecError: another text, a bucket that cannot
/// be one.
S3Path parse_s3(const std::string& uri);

/// What went wrong, and what to do. The caller rethrows it as the typed error of what it does.
struct S3Error : std::runtime_error {
  enum class Kind : unsigned char {
    absent,       ///< no such bucket, or object
    denied,       ///< the credentials
    changed,      ///< the object is another one than it was
    unavailable,  ///< tried until it was given up
    stopped,      ///< by `S3Client::stop`
    refused,      ///< anything else
  };
  S3Error(Kind of, const std::string& message) : std::runtime_error(message), kind(of) {}
  Kind kind;
};

struct S3Object {
  std::string key;
  std::int64_t bytes = 0;
  std::string etag;  ///< as the store writes it, quotes included
};

/// An object of several parts that is not complete.
struct S3Upload {
  std::string key, id;
};
struct S3Part {
  std::int64_t bytes = 0;
  std::string etag;
};

/// Since the client was made.
struct S3Counters {
  std::int64_t requests = 0;    ///< tries included
  std::int64_t retries = 0;     ///< tries after one that failed
  std::int64_t bytes_read = 0;  ///< of objects
  std::int64_t renewals = 0;    ///< of credentials
};

/// An S3-compatible store. Requests that fail by a cut or silent connection, a timeout, 429 or 5xx are tried
/// again, after waits that double up to 20 s and vary by chance; credentials that expired are fetched anew.
/// All throw S3Error naming bucket and key, or SpecError where there are no credentials. For several threads,
/// each with a connection of its own.
class S3Client {
 public:
  /// Throws SpecError without libcurl.
  explicit S3Client(S3Settings settings);
  ~S3Client();

  /// None: there is no such object.
  std::optional<S3Object> head(const S3Path& path);
  /// Fills `out` from `offset`. With an `etag`, an object that is another one by now is `changed`.
  void get(const S3Path& path, const std::string& etag, std::int64_t offset, std::span<std::byte> out);
  /// All objects whose keys begin with `prefix`, sorted by the bytes of their keys.
  std::vector<S3Object> list(const std::string& bucket, const std::string& prefix);
  /// What follows `prefix` up to the next slash, of all objects: names of files and folders, sorted.
  std::vector<std::string> list_names(const std::string& bucket, const std::string& prefix);
  void put(const S3Path& path, std::span<const std::byte> bytes);
  /// One that is not there is fine.
  void remove(const S3Path& path);

  /// Part `number`, from 1, of an object of several; all but the last have at least 5 MiB. Its ETag.
  std::string begin_upload(const S3Path& path);
  std::string upload_part(const S3Path& path, const std::string& upload, int number,
                          std::span<const std::byte> bytes);
  /// Nothing of the object is there before.
  void complete_upload(const S3Path& path, const std::string& upload, const std::vector<std::string>& etags);
  /// Those that were begun of keys with this prefix, and not ended.
  std::vector<S3Upload> uploads(const std::string& bucket, const std::string& prefix);
  /// What came of one, by number.
  std::map<int, S3Part> parts(const S3Path& path, const std::string& upload);
  /// What was uploaded of it goes.
  void abort_upload(const S3Path& path, const std::string& upload);

  S3Counters counters() const;
  /// From any thread: requests under way and all later ones end as `stopped`, within about a second.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
