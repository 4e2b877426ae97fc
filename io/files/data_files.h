#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/files/object_reader.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// A data file, local or in an object store, open for reading. Thread-safe.
class DataFile {
 public:
  DataFile() = default;
  DataFile(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  DataFile(std::string path, std::shared_ptr<ObjectReader> reader, const RemoteObject& object)
      : path_(std::move(path)), reader_(std::move(reader)), object_(&object) {}

  /// True if a file is open.
  explicit operator bool() const { return static_cast<bool>(fd_) || object_ != nullptr; }
  bool is_remote() const { return object_ != nullptr; }
  /// The object's ETag, which changes when the object is replaced; empty for a local file.
  std::string version() const { return object_ == nullptr ? "" : object_->etag; }
  /// Text that changes when the file is replaced or written: its version, or of a local file the inode, size
  /// and time of the last write. Comparable on one machine only.
  std::string stamp() const;
  /// Throws DataError.
  std::int64_t bytes() const;
  /// Reads up to `out.size()` bytes at `offset`, fewer only at the end of the file. Throws DataError.
  std::int64_t read(std::int64_t offset, std::span<std::byte> out) const;
  /// The same for bytes that are read only once: they are not cached.
  std::int64_t read_once(std::int64_t offset, std::span<std::byte> out) const;
  /// Announces that these bytes will be read soon. No effect for a local file.
  void announce(std::int64_t offset, std::int64_t bytes) const;

 private:
  std::string path_;
  base::UniqueFd fd_;
  std::shared_ptr<ObjectReader> reader_;
  const RemoteObject* object_ = nullptr;
};

/// Opens data files: local ones, and s3:// ones if it has a reader. Cheap to copy.
class DataFiles {
 public:
  DataFiles() = default;  ///< local files only
  explicit DataFiles(std::shared_ptr<ObjectReader> objects) : objects_(std::move(objects)) {}

  /// Returns none if there is no such file. Throws DataError if it cannot be opened, or for an s3:// path
  /// without a reader.
  DataFile open(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// True for a regular file or an object.
  bool is_file(const std::string& path) const;
  /// Lists all objects whose keys begin with the key of `path` (s3://), sorted.
  std::vector<std::string> list_objects(const std::string& path) const;
  /// Makes current and later remote reads fail within about a second, even if the store does not answer.
  void stop() const;
  /// The reader, for its counters; null without one.
  const ObjectReader* reader() const { return objects_.get(); }

 private:
  ObjectReader& objects(const std::string& path) const;
  std::shared_ptr<ObjectReader> objects_;
};

}  // namespace trainerd::io
