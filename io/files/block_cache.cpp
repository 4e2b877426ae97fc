#include "io/files/block_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "io/hash/hash.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChecksumBytes = 32;
constexpr const char* kUsageName = "usage";
constexpr std::chrono::hours kLeftover{1};  // age at which a partial file is abandoned

base::SpecError cache_error(const std::string& directory, const std::string& what) {
  return base::spec_error("data.cache.directory: " + directory + ": " + what +
                          ": name another directory, or set data.cache.bytes: 0 to have none");
}

/// Names of what `store` creates: a folder per file, named by its id; blocks in it, named by their numbers;
/// and partial blocks that are being written.
bool is_folder_name(const std::string& name) {
  return name.size() == kChecksumBytes && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}
bool is_block_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}
bool is_partial_name(const std::string& name) {
  return name.size() > 1 && name.front() == '.' &&
         name.find_first_not_of("0123456789-", 1) == std::string::npos;
}

/// Locks the usage file across processes.
class UsageLock {
 public:
  explicit UsageLock(int fd) : fd_(fd) {
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {}
  }
  ~UsageLock() { ::flock(fd_, LOCK_UN); }
  UsageLock(const UsageLock&) = delete;
  UsageLock& operator=(const UsageLock&) = delete;

  /// Returns none if the file has no valid number.
  std::optional<std::int64_t> get() const {
    std::array<char, 32> text{};
    const std::int64_t got = base::read_at(fd_, std::as_writable_bytes(std::span(text)), 0);
    std::int64_t bytes = -1;
    if (got > 0) std::from_chars(text.data(), text.data() + got, bytes);
    return bytes < 0 ? std::nullopt : std::optional(bytes);
  }
  void set(std::int64_t bytes) const {
    std::string text = std::to_string(bytes);
    text.resize(24, ' ');
    if (::pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      static_cast<void>(::ftruncate(fd_, 0));  // the next call counts again
  }

 private:
  int fd_;
};

}  // namespace

std::string default_cache_directory() { return "/var/tmp/trainerd-cache-" + std::to_string(::geteuid()); }

BlockCache::BlockCache(std::string directory, std::int64_t limit_bytes)
    : directory_(std::move(directory)), limit_(limit_bytes) {
  std::error_code error;
  const fs::path parent = fs::path(directory_).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (::mkdir(directory_.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    throw cache_error(directory_, "cannot be made: " + base::errno_text(errno));
  struct stat info {};
  // /var/tmp is writable by all: another user's link there could lead elsewhere.
  const auto look = directory_ == default_cache_directory() ? ::lstat : ::stat;
  if (look(directory_.c_str(), &info) != 0)
    throw cache_error(directory_, "cannot be looked at: " + base::errno_text(errno));
  if (!S_ISDIR(info.st_mode)) throw cache_error(directory_, "is no directory");
  // A directory that others can write could feed wrong data to this job.
  if (info.st_uid != ::geteuid()) throw cache_error(directory_, "belongs to another user");
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    throw cache_error(directory_, "can be written by other users");
  usage_ = base::UniqueFd(
      ::open((fs::path(directory_) / kUsageName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!usage_) throw cache_error(directory_, "cannot be written: " + base::errno_text(errno));
}

std::string BlockCache::path_of(const std::string& id, std::int64_t number) const {
  return directory_ + "/" + id + "/" + std::to_string(number);
}

bool BlockCache::load(const std::string& id, std::int64_t number, std::span<std::byte> out) {
  const std::string path = path_of(id, number);
  const base::UniqueFd fd = base::open_read(path);
  if (!fd) return false;
  std::string checksum(kChecksumBytes, '\0');
  const auto size = static_cast<std::int64_t>(out.size());
  const bool whole = base::file_bytes(fd.get()) == size + static_cast<std::int64_t>(kChecksumBytes) &&
                     base::read_at(fd.get(), out, 0) == size &&
                     base::read_at(fd.get(), std::as_writable_bytes(std::span(checksum)), size) ==
                         static_cast<std::int64_t>(kChecksumBytes);
  if (whole && checksum == xxh3_hex(out)) {
    static_cast<void>(::futimens(fd.get(), nullptr));  // marks it as just used
    return true;
  }
  ++failures_;
  ::unlink(path.c_str());
  return false;
}

// Removes the least recently used blocks until at most `target` bytes are left. Returns the bytes left.
std::int64_t BlockCache::make_room(std::int64_t target) {
  struct Kept {
    fs::file_time_type used;
    std::int64_t bytes;
    fs::path path;
  };
  std::vector<Kept> kept;
  std::int64_t total = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator folder(directory_, error), end; !error && folder != end;
       folder.increment(error)) {
    std::error_code ignored;
    // Other files in the directory do not belong to the cache.
    if (!is_folder_name(folder->path().filename().string()) || folder->is_symlink(ignored) ||
        !folder->is_directory(ignored))
      continue;
    for (fs::directory_iterator file(folder->path(), ignored), last; !ignored && file != last;
         file.increment(ignored)) {
      const std::string name = file->path().filename().string();
      if (!is_block_name(name) && !is_partial_name(name)) continue;
      std::error_code gone;
      const auto used = file->last_write_time(gone);
      const auto bytes = gone ? 0 : static_cast<std::int64_t>(file->file_size(gone));
      if (gone) continue;
      if (is_partial_name(name) && now - used > kLeftover) {
        fs::remove(file->path(), gone);
        continue;
      }
      kept.push_back({used, bytes, file->path()});
      total += bytes;
    }
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& oldest : kept) {
    if (total <= target) break;
    std::error_code failed;
    fs::remove(oldest.path, failed);
    if (failed) continue;
    total -= oldest.bytes;
    fs::remove(oldest.path.parent_path(), failed);  // succeeds only if it is empty
  }
  return total;
}

bool BlockCache::write(const std::string& id, std::int64_t number, std::span<const std::byte> bytes) {
  const std::string path = path_of(id, number), folder = directory_ + "/" + id;
  const std::string partial = folder + "/." + std::to_string(number) + "-" + std::to_string(::getpid()) +
                              "-" + std::to_string(++stored_);
  const std::string checksum = xxh3_hex(bytes);
  ::mkdir(folder.c_str(), S_IRWXU);
  const base::UniqueFd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (fd && base::write_all(fd.get(), bytes) == 0 &&
      base::write_all(fd.get(), std::as_bytes(std::span(checksum))) == 0 &&
      ::rename(partial.c_str(), path.c_str()) == 0)
    return true;
  ::unlink(partial.c_str());
  return false;
}

// Keeps the lock until the block is written. Otherwise another process would not count this block yet, and
// together they would exceed the limit.
void BlockCache::store(const std::string& id, std::int64_t number, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size() + kChecksumBytes);
  if (size > limit_) {
    ++failures_;
    return;
  }
  const std::lock_guard threads(mutex_);
  const UsageLock lock(usage_.get());
  const std::optional<std::int64_t> known = lock.get();
  std::int64_t used = known.value_or(limit_);
  // Frees a tenth at once, so the directory is not listed for every block.
  if (!known || used + size > limit_)
    used = make_room(std::max<std::int64_t>(0, limit_ - limit_ / 10 - size));
  const bool written = used + size <= limit_ && write(id, number, bytes);
  if (!written) ++failures_;
  lock.set(used + (written ? size : 0));
}

}  // namespace trainerd::io
