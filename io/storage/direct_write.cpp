#include "io/storage/direct_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace trainerd::io {
namespace {

constexpr std::size_t kAlignment = 4096;  // for memory, offset and size
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kInFlight = 4;
// Below this size the page cache is as fast.
constexpr std::size_t kMinBytes = std::size_t{8} << 20;

int write_at(int fd, std::span<const std::byte> bytes, std::size_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::size_t>(n);
  }
  return 0;
}

/// Sets O_DIRECT on the file for its lifetime.
class Direct {
 public:
  explicit Direct(int fd) : fd_(fd), flags_(::fcntl(fd, F_GETFL)) {
    is_set_ = flags_ >= 0 && ::fcntl(fd_, F_SETFL, flags_ | O_DIRECT) == 0;
  }
  ~Direct() {
    if (is_set_) ::fcntl(fd_, F_SETFL, flags_);
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;
  bool is_set() const { return is_set_; }

 private:
  int fd_, flags_;
  bool is_set_ = false;
};

/// Several threads take pieces in turn. The first error stops all of them.
int write_pieces(int fd, std::span<const std::byte> bytes, const std::function<bool()>& wanted) {
  std::atomic<std::size_t> next{0};
  std::atomic<int> first_error{0};
  const auto work = [&] {
    for (;;) {
      const std::size_t at = next.fetch_add(kPieceBytes);
      if (at >= bytes.size() || first_error != 0) return;
      const int error = wanted && !wanted()
                            ? ECANCELED
                            : write_at(fd, bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)), at);
      int none = 0;
      if (error != 0) first_error.compare_exchange_strong(none, error);
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < kInFlight) others.emplace_back(work);
    } catch (const std::system_error&) {
      // With fewer threads it is only slower.
    }
    work();
  }
  return first_error;
}

}  // namespace

int write_direct(int fd, std::span<const std::byte> bytes, const std::function<bool()>& wanted) {
  const std::size_t whole = bytes.size() - bytes.size() % kAlignment;
  if (whole < kMinBytes || reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0) return EINVAL;
  // Reserves all space at once: a full disk is found early, and out-of-order pieces do not change the file's
  // size.
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes.size())) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    return errno;
  {
    const Direct direct(fd);
    if (!direct.is_set()) return EINVAL;
    if (const int error = write_pieces(fd, bytes.first(whole), wanted); error != 0) return error;
  }
  return write_at(fd, bytes.subspan(whole), whole);
}

}  // namespace trainerd::io
