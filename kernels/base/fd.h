#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace trainerd::base {

/// Owns one file descriptor and closes it. -1 means none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// All of these retry on EINTR. They report failure by errno (0 is success), so that the caller chooses the
// error type (data, checkpoint, spec).

/// Opens for reading; an empty UniqueFd and errno set on failure.
UniqueFd open_read(const std::string& path);
/// Reads up to `out.size()` bytes at `offset`; returns bytes read (short at end of file) or -1 with errno
/// set.
std::int64_t read_at(int fd, std::span<std::byte> out, std::int64_t offset);
/// Writes all of `bytes`; returns 0 or an errno value.
int write_all(int fd, std::span<const std::byte> bytes);
/// Size in bytes, or -1 with errno set.
std::int64_t file_bytes(int fd);
/// Flushes a directory's entries to disk; returns 0 or an errno value.
int sync_directory(const std::string& path);

}  // namespace trainerd::base
