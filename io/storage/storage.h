#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainerd::io {

/// One stored file, open for reading.
class StoredFile {
 public:
  virtual ~StoredFile() = default;
  virtual std::int64_t bytes() const = 0;
  /// Fills `out` from `offset`; a short read is an error.
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
};

/// A tree of files below one root; names are relative to it ("step-00000010/manifest.json", "" is the root
/// itself). What a checkpoint store needs and no more. All throw CheckpointError with the full path and the
/// reason: a StorageError (file_errors.h) where the operating system failed the operation, after a look was
/// tried again for about 2 s.
class Storage {
 public:
  virtual ~Storage() = default;
  /// Full path for people.
  virtual std::string path_of(const std::string& name) const = 0;
  /// Makes a folder and those above it; one that is there already is fine.
  virtual void make_folder(const std::string& name) = 0;
  /// Names in a folder, sorted; none if the folder is not there.
  virtual std::vector<std::string> list(const std::string& name) const = 0;
  /// False for what is not there alone: what cannot be looked at is an error.
  virtual bool exists(const std::string& name) const = 0;
  /// Writes a new file whole; its bytes are on the disk when this returns.
  virtual void write(const std::string& name, std::span<const std::byte> bytes) = 0;
  /// A regular file, or a link to one.
  virtual std::unique_ptr<StoredFile> open(const std::string& name) const = 0;
  /// Atomic; `to` must not exist as a folder with content.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// A file or a folder with all below it; one that is not there is fine.
  virtual void remove(const std::string& name) = 0;
  /// Makes creations, renames and removals in a folder durable.
  virtual void sync_folder(const std::string& name) = 0;
};

/// The storage behind a path or URI: a plain path or file:///path is a local disk. Throws SpecError for a
/// scheme that does not exist, naming those that do.
std::unique_ptr<Storage> open_storage(const std::string& uri);

/// The path in a plain path or file:///path. Throws SpecError for another scheme, and for a file:// path that
/// is not absolute.
std::string local_path(const std::string& uri);

/// The whole of a small file.
std::string read_text(const Storage& storage, const std::string& name);

}  // namespace trainerd::io
