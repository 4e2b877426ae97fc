#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/s3/client.h"

namespace trainerd::io {

/// An object as it was when first found.
struct RemoteObject {
  S3Path path;
  std::int64_t bytes = 0;
  std::string etag, id;  ///< `id`: key of its blocks in the cache
};

/// Counters since the reader was made.
struct ReaderCounters {
  S3Counters store;
  std::int64_t cached_bytes = 0;    ///< read from the local cache
  std::int64_t cache_failures = 0;  ///< blocks that could not be stored, or were damaged
};

/// Reads objects of a store by offset, in blocks of 256 KiB. Keeps `memory_bytes` of them in memory and more
/// in a local directory. Eight threads fetch announced bytes; a read waits for blocks that are being fetched.
/// Throws DataError naming the object and what to do. Thread-safe.
class ObjectReader {
 public:
  static constexpr std::int64_t kBlockBytes = 256 << 10, kMemoryBytes = 64 << 20;
  struct Options {
    S3Settings store;
    std::string cache_directory = {};  ///< empty: default_cache_directory()
    std::int64_t cache_bytes = 0;      ///< on disk; 0: no cache
    std::int64_t memory_bytes = kMemoryBytes;
  };

  explicit ObjectReader(Options options);
  /// Aborts requests in progress.
  ~ObjectReader();

  /// Returns null if there is no such object. The result of the first lookup is kept.
  const RemoteObject* find(const std::string& uri);
  /// Lists all objects whose keys begin with the key of `uri`, as sorted URIs, without folder markers.
  std::vector<std::string> list(const std::string& uri);
  /// Reads `out.size()` bytes at `offset`; the range must lie in the object. Throws DataError also if the
  /// object was replaced since it was found.
  void read(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out);
  /// The same without memory and disk cache, for bytes that are read only once.
  void read_once(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out);
  /// Starts to fetch bytes that will be read soon. An error is reported by the later read.
  void announce(const RemoteObject& object, std::int64_t offset, std::int64_t bytes);

  ReaderCounters counters() const;
  /// Makes current and later reads fail within about a second.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
