#include "kernels/base/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>

#include "kernels/base/error.h"

namespace trainerd::base {
namespace {

std::byte* map_whole(int fd, std::size_t size, int flags = 0) {
  if (size == 0) return nullptr;
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
  if (p == MAP_FAILED)
    throw device_error("cannot map a shared segment of " + std::to_string(size) +
                       " bytes: " + errno_text(errno));
  return static_cast<std::byte*>(p);
}

}  // namespace

Segment Segment::create(const std::string& name, std::int64_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd) throw device_error("cannot make the shared segment " + name + ": " + errno_text(errno));
  // Allocated now, not at first touch, so that missing memory is an error before step 0 and not a SIGBUS in a
  // step.
  if (bytes > 0) {
    const int rc = ::posix_fallocate(fd.get(), 0, bytes);
    if (rc == EFBIG)
      throw capacity_error("the shared segment " + name + " needs " + std::to_string(bytes) +
                           " bytes, more than a file of this process may have: raise `ulimit -f`");
    if (rc != 0)
      throw capacity_error("the shared segment " + name + " needs " + std::to_string(bytes) +
                           " bytes of host memory, which are not there: " + errno_text(rc));
  }
  std::byte* data = map_whole(fd.get(), static_cast<std::size_t>(bytes));
  return {std::move(fd), data, static_cast<std::size_t>(bytes)};
}

Segment Segment::attach(UniqueFd fd, Pages pages) {
  const std::int64_t size = file_bytes(fd.get());
  if (size < 0) throw device_error("an inherited segment cannot be read: " + errno_text(errno));
  std::byte* data =
      map_whole(fd.get(), static_cast<std::size_t>(size), pages == Pages::at_once ? MAP_POPULATE : 0);
  return {std::move(fd), data, static_cast<std::size_t>(size)};
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace trainerd::base
