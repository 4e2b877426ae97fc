#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/s3/client.h"

namespace trainerd::io {

/// An object as it was when it was first looked at.
struct RemoteObject {
  S3Path path;
  std::int64_t bytes = 0;
  std::string etag, id;  ///< `id`: what its blocks are cached by
};

/// Since the reader was made.
struct ReaderCounters {
  S3Counters store;
  std::int64_t cached_bytes = 0;    ///< read from the local cache
  std::int64_t cache_failures = 0;  ///< blocks that could not be kept in it, or were damaged
};

/// Reads objects of a store by position, in blocks of 256 KiB, of which `memory_bytes` stay in memory and
/// more in a local directory. What is announced is fetched by eight threads, and a read waits for what is
/// under way. Throws DataError naming the object and what to do. For several threads.
class ObjectReader {
 public:
  static constexpr std::int64_t kBlockBytes = 256 << 10, kMemoryBytes = 64 << 20;
  struct Options {
    S3Settings store;
    std::string cache_directory = {};  ///< empty: default_cache_directory()
    std::int64_t cache_bytes = 0;      ///< on disk; 0: none
    std::int64_t memory_bytes = kMemoryBytes;
  };

  explicit ObjectReader(Options options);
  /// Ends what is under way.
  ~ObjectReader();

  /// None: there is no such object. What was found once, or was not, stays so.
  const RemoteObject* find(const std::string& uri);
  /// All objects whose keys begin with that of `uri`, as URIs, sorted; without markers of folders.
  std::vector<std::string> list(const std::string& uri);
  /// Reads `out.size()` bytes at `offset`, which the object has. Throws DataError too where the object was
  /// replaced since it was found.
  void read(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out);
  /// The same, past memory and cache: of bytes that are not read again.
  void read_once(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out);
  /// These bytes will be read: fetches them, without waiting. An error comes when they are read.
  void announce(const RemoteObject& object, std::int64_t offset, std::int64_t bytes);

  ReaderCounters counters() const;
  /// Reads that are under way and later ones fail, within about a second.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
