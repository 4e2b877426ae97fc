#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  /// Fills `out` from `offset`. A short read is an error.
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
  /// Drops this machine's cached pages of the file, if possible, so that later reads come from the storage
  /// itself.
  virtual void forget_cached() const {}
};

/// Called before each piece of a copy with the piece's size. It may wait, or throw to end the copy.
using Pace = std::function<void(std::int64_t bytes)>;

/// Asked before each piece of a write, from several threads. After false the write ends with a StorageError
/// of ECANCELED. An empty function is never asked.
using Wanted = std::function<bool()>;

/// A tree of files below one root. Names are relative to it ("step-00000010/manifest.json"; "" is the root
/// itself). Has only what a checkpoint store needs; there is no rename, since an object store has none. All
/// operations throw CheckpointError with the full path and the reason. It is a StorageError (file_errors.h)
/// if the operating system or the store failed the operation; reads are retried for about 2 s first.
class Storage {
 public:
  virtual ~Storage() = default;
  /// Full path for display.
  virtual std::string path_of(const std::string& name) const = 0;
  /// Makes a folder and its parents. Existing folders are no error.
  virtual void make_folder(const std::string& name) = 0;
  /// Names in a folder, sorted; empty if the folder does not exist.
  virtual std::vector<std::string> list(const std::string& name) const = 0;
  /// False only if nothing has that name. A failed check is an error.
  virtual bool exists(const std::string& name) const = 0;
  /// Writes a new file. Its bytes are durable when this returns. A write that fails or is killed may leave
  /// part of them.
  virtual void write(const std::string& name, std::span<const std::byte> bytes,
                     const Wanted& wanted = {}) = 0;
  /// Copies another file in pieces and replaces an existing file. A file that already has the same bytes is
  /// kept, also from an interrupted copy. Returns the number of bytes written.
  virtual std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) = 0;
  /// Opens a regular file, or a link to one.
  virtual std::unique_ptr<StoredFile> open(const std::string& name) const = 0;
  /// Removes a file, or a folder with all below it. A missing name is no error.
  virtual void remove(const std::string& name) = 0;
  /// Makes creations and removals in a folder durable.
  virtual void sync_folder(const std::string& name) = 0;
  /// Makes operations that wait for a network fail soon, current and later ones. Thread-safe.
  virtual void stop() {}
};

/// Opens a remote storage by its URI. An empty function opens none.
using OpenRemote = std::function<std::unique_ptr<Storage>(const std::string& uri)>;
/// Returns true if a path is of a remote storage: it has a scheme other than file://.
bool is_remote(const std::string& uri);
/// Opens the storage of a path or URI: a plain path or file:///path is a local disk, s3://bucket/prefix is
/// opened by `remote`. Throws SpecError for an unknown scheme, naming the known ones.
std::unique_ptr<Storage> open_storage(const std::string& uri, const OpenRemote& remote = {});

/// Returns the path in a plain path or file:///path. Throws SpecError for another scheme and for a file://
/// path that is not absolute.
std::string local_path(const std::string& uri);

/// Returns true if two plain paths or file:/// URIs are the same directory: by name, through links, or by
/// device and inode. They need not exist.
bool is_same_directory(const std::string& a, const std::string& b);

/// Reads a small file.
std::string read_text(const Storage& storage, const std::string& name);

}  // namespace trainerd::io
