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
  /// Fills `out` from `offset`; a short read is an error.
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
  /// Drops this machine's cached pages of the file where that is possible, so that later reads come from the
  /// storage itself.
  virtual void forget_cached() const {}
};

/// Called before each piece of a copy with its bytes: it may wait, and throws to end the copy.
using Pace = std::function<void(std::int64_t bytes)>;

/// A tree of files below one root; names are relative to it ("step-00000010/manifest.json", "" is the root
/// itself). What a checkpoint store needs and no more: an object store has no rename. All throw
/// CheckpointError with the full path and the reason: a StorageError (file_errors.h) where the operating
/// system or the store failed the operation, after a look was tried again for about 2 s.
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
  /// Writes a new file whole; its bytes are durable when this returns. A write that fails or is killed may
  /// leave a part of them.
  virtual void write(const std::string& name, std::span<const std::byte> bytes) = 0;
  /// The same of the bytes of another file, in pieces; a file in its place is replaced. What is there with
  /// the same bytes, of this copy or of one that was interrupted, stays: the bytes that were written.
  virtual std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) = 0;
  /// A regular file, or a link to one.
  virtual std::unique_ptr<StoredFile> open(const std::string& name) const = 0;
  /// A file or a folder with all below it; one that is not there is fine.
  virtual void remove(const std::string& name) = 0;
  /// Makes creations and removals in a folder durable.
  virtual void sync_folder(const std::string& name) = 0;
  /// From any thread: operations under way and later ones fail soon, where they wait for a network.
  virtual void stop() {}
};

/// Opens a storage that is no local disk, by its URI. A value that is passed along; an empty one opens none.
using OpenRemote = std::function<std::unique_ptr<Storage>(const std::string& uri)>;
/// Whether a path is of such a storage: it has a scheme other than file://.
bool is_remote(const std::string& uri);
/// The storage behind a path or URI: a plain path or file:///path is a local disk, s3://bucket/prefix is
/// opened by `remote`. Throws SpecError for a scheme that does not exist, naming those that do.
std::unique_ptr<Storage> open_storage(const std::string& uri, const OpenRemote& remote = {});

/// The path in a plain path or file:///path. Throws SpecError for another scheme, and for a file:// path that
/// is not absolute.
std::string local_path(const std::string& uri);

/// Whether two plain paths or file:/// URIs are of one directory, by name, through links, or by device and
/// inode. Either need not be there.
bool is_same_directory(const std::string& a, const std::string& b);

/// The whole of a small file.
std::string read_text(const Storage& storage, const std::string& name);

}  // namespace trainerd::io
