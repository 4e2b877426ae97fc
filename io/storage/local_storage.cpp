#include "io/storage/local_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "io/storage/direct_write.h"
#include "io/storage/file_errors.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

StorageError failed(const std::string& path, const std::string& what, int error, bool write,
                    std::source_location where = std::source_location::current()) {
  return {path + ": cannot " + what + ": " + base::errno_text(error) + remedy_of(error, write), error, where};
}
StorageError cannot_read(const std::string& path, const std::string& what, int error,
                         std::source_location where = std::source_location::current()) {
  return failed(path, what, error, false, where);
}
StorageError cannot_write(const std::string& path, const std::string& what, int error,
                          std::source_location where = std::source_location::current()) {
  return failed(path, what, error, true, where);
}

constexpr std::int64_t kCopyBytes = std::int64_t{4} << 20;  // per piece

/// A new file, written from its beginning.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (!fd_) throw cannot_write(path_, "make this file", errno);
  }
  void write(std::span<const std::byte> bytes) const {
    if (const int error = base::write_all(fd_.get(), bytes); error != 0)
      throw cannot_write(path_, "write", error);
  }
  /// Writes all bytes at once.
  void write_whole(std::span<const std::byte> bytes, const Wanted& wanted) const {
    const int error = write_direct(fd_.get(), bytes, wanted);
    if (error != 0 && error != EINVAL) throw cannot_write(path_, "write", error);
    if (error == 0) return;
    while (!bytes.empty()) {
      if (wanted && !wanted()) throw cannot_write(path_, "write", ECANCELED);
      const std::span<const std::byte> piece = bytes.first(std::min<std::size_t>(kCopyBytes, bytes.size()));
      write(piece);
      bytes = bytes.subspan(piece.size());
    }
  }
  void flush() const {
    if (::fsync(fd_.get()) != 0) throw cannot_write(path_, "flush to the disk", errno);
  }

 private:
  std::string path_;
  base::UniqueFd fd_;
};

/// Calls `take` with the pieces of `file` in order, until it returns false.
void for_each_piece(const StoredFile& file,
                    const std::function<bool(std::int64_t at, std::span<const std::byte>)>& take) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kCopyBytes, file.bytes())));
  for (std::int64_t at = 0; at < file.bytes();) {
    const auto part = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::int64_t>(kCopyBytes, file.bytes() - at)));
    file.read(at, part);
    if (!take(at, part)) return;
    at += static_cast<std::int64_t>(part.size());
  }
}

class LocalFile final : public StoredFile {
 public:
  LocalFile(std::string path, base::UniqueFd fd, std::int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}
  std::int64_t bytes() const override { return bytes_; }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    std::int64_t got = 0;
    const int error = with_retries([&] {
      got = base::read_at(fd_.get(), out, offset);
      return got < 0 ? errno : 0;
    });
    if (error != 0) throw cannot_read(path_, "read", error);
    if (std::cmp_equal(got, out.size())) return;
    const std::string message = path_ + ": ends " +
                                std::to_string(static_cast<std::int64_t>(out.size()) - got) +
                                " bytes too early, at " + std::to_string(offset + got);
    // If the file had these bytes when it was opened, the file system failed; the file is not damaged.
    if (offset + static_cast<std::int64_t>(out.size()) <= bytes_)
      throw StorageError(message + " of " + std::to_string(bytes_) + remedy_of(EIO, false), EIO);
    throw base::checkpoint_error(message);
  }
  void forget_cached() const override { ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED); }

 private:
  std::string path_;
  base::UniqueFd fd_;
  std::int64_t bytes_;
};

/// Does not follow links: a write must not go to another place.
bool is_regular(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::symlink_status(path, ignored));
}

}  // namespace

std::string LocalStorage::path_of(const std::string& name) const {
  return name.empty() ? root_ : (fs::path(root_) / name).string();
}

void LocalStorage::make_folder(const std::string& name) {
  const std::string path = path_of(name);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw cannot_write(path, "make this directory", error.value());
  // The root may be a link to another disk. A link below it was not made by this program.
  if (!name.empty() && fs::is_symlink(path, error))
    throw base::checkpoint_error(path + ": is a symbolic link, which is not written through; remove it");
}

std::vector<std::string> LocalStorage::list(const std::string& name) const {
  std::vector<std::string> names;
  const int error = with_retries([&] {
    names.clear();
    std::error_code failure;
    for (fs::directory_iterator it(path_of(name), failure), end; !failure && it != end; it.increment(failure))
      names.push_back(it->path().filename().string());
    return failure.value();
  });
  if (error != 0 && error != ENOENT) throw cannot_read(path_of(name), "list this directory", error);
  std::sort(names.begin(), names.end());
  return names;
}

bool LocalStorage::exists(const std::string& name) const {
  const std::string path = path_of(name);
  struct stat status {};
  const int error = with_retries([&] { return ::stat(path.c_str(), &status) == 0 ? 0 : errno; });
  if (error == 0 || is_absence(error)) return error == 0;
  throw cannot_read(path, "look at it", error);
}

void LocalStorage::write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted) {
  const NewFile file(path_of(name));
  file.write_whole(bytes, wanted);
  file.flush();
}

std::int64_t LocalStorage::copy(const std::string& name, const StoredFile& from, const Pace& pace) {
  if (is_regular(path_of(name))) {
    const std::unique_ptr<StoredFile> there = open(name);
    bool same = there->bytes() == from.bytes();
    std::vector<std::byte> other;
    if (same)
      for_each_piece(from, [&](std::int64_t at, std::span<const std::byte> piece) {
        other.resize(piece.size());
        there->read(at, other);
        return same = std::equal(piece.begin(), piece.end(), other.begin());
      });
    if (same) {
      // The process that wrote it may have been killed before its fsync, so the bytes may be in memory only.
      const base::UniqueFd fd(::open(path_of(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd || ::fsync(fd.get()) != 0) throw cannot_write(path_of(name), "flush to the disk", errno);
      return 0;
    }
  }
  remove(name);
  const NewFile file(path_of(name));
  for_each_piece(from, [&](std::int64_t, std::span<const std::byte> piece) {
    if (pace) pace(static_cast<std::int64_t>(piece.size()));
    file.write(piece);
    return true;
  });
  file.flush();
  return from.bytes();
}

std::unique_ptr<StoredFile> LocalStorage::open(const std::string& name) const {
  const std::string path = path_of(name);
  base::UniqueFd fd;
  struct stat status {};
  const int error = with_retries([&] {
    // O_NONBLOCK: otherwise opening a FIFO would wait for its writer.
    fd = base::UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    return fd && ::fstat(fd.get(), &status) == 0 ? 0 : errno;
  });
  if (error != 0) throw cannot_read(path, "open", error);
  if (!S_ISREG(status.st_mode)) throw base::checkpoint_error(path + ": is not a regular file");
  return std::make_unique<LocalFile>(path, std::move(fd), static_cast<std::int64_t>(status.st_size));
}

void LocalStorage::rename(const std::string& from, const std::string& to) {
  if (::rename(path_of(from).c_str(), path_of(to).c_str()) != 0)
    throw cannot_write(path_of(from), "rename to " + path_of(to), errno);
}

void LocalStorage::remove(const std::string& name) {
  base::check(!name.empty(), "the root of a storage is not removed");
  const std::string path = path_of(name);
  const int error = with_retries([&] {
    std::error_code failure;
    fs::remove_all(path, failure);
    return failure.value();
  });
  if (error != 0) throw cannot_write(path, "remove", error);
}

void LocalStorage::sync_folder(const std::string& name) {
  if (const int error = base::sync_directory(path_of(name)); error != 0)
    throw cannot_write(path_of(name), "flush to the disk", error);
}

}  // namespace trainerd::io
