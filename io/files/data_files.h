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

/// A file of data, local or of an object store, open for reading. For several threads.
class DataFile {
 public:
  DataFile() = default;
  DataFile(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  DataFile(std::string path, std::shared_ptr<ObjectReader> reader, const RemoteObject& object)
      : path_(std::move(path)), reader_(std::move(reader)), object_(&object) {}

  /// Whether there is one.
  explicit operator bool() const { return static_cast<bool>(fd_) || object_ != nullptr; }
  bool is_remote() const { return object_ != nullptr; }
  /// The object's version: another object of the same name has another one; empty for a local file.
  std::string version() const { return object_ == nullptr ? "" : object_->etag; }
  /// Throws DataError.
  std::int64_t bytes() const;
  /// Reads up to `out.size()` bytes at `offset`: less at the file's end alone. Throws DataError.
  std::int64_t read(std::int64_t offset, std::span<std::byte> out) const;
  /// The same of bytes that are not read again: no cache keeps them.
  std::int64_t read_once(std::int64_t offset, std::span<std::byte> out) const;
  /// These bytes will be read. Of a local file it does nothing.
  void announce(std::int64_t offset, std::int64_t bytes) const;

 private:
  std::string path_;
  base::UniqueFd fd_;
  std::shared_ptr<ObjectReader> reader_;
  const RemoteObject* object_ = nullptr;
};

/// How files of data are opened: local ones always, those at s3:// by a reader. A value that is passed along.
class DataFiles {
 public:
  DataFiles() = default;  ///< local files alone
  explicit DataFiles(std::shared_ptr<ObjectReader> objects) : objects_(std::move(objects)) {}

  /// None: there is no such file. Throws DataError: it cannot be opened; an s3:// path without a reader.
  DataFile open(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// A regular file, or an object.
  bool is_file(const std::string& path) const;
  /// All objects whose keys begin with that of an s3:// path, sorted.
  std::vector<std::string> list_objects(const std::string& path) const;
  /// Remote reads that are under way and later ones fail, within about a second, also where the
  /// store does not answer.
  void stop() const;
  /// Of all that was read by it; none without a reader.
  const ObjectReader* reader() const { return objects_.get(); }

 private:
  ObjectReader& objects(const std::string& path) const;
  std::shared_ptr<ObjectReader> objects_;
};

}  // namespace trainerd::io
