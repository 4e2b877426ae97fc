#include "kernels/base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

namespace trainerd::base {
namespace {

// O_NONBLOCK: opening a FIFO without another end fails instead of blocking.
UniqueFd open_checked(const std::string& path, int mode, bool devices) {
  int fd = -1;
  do fd = ::open(path.c_str(), mode | O_NONBLOCK | O_CLOEXEC, 0644);
  while (fd < 0 && errno == EINTR);
  if (fd < 0 && errno == ENXIO) errno = EINVAL;  // a FIFO without a reader, or a socket
  UniqueFd file(fd);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return {};
  if (S_ISREG(status.st_mode) || (devices && S_ISCHR(status.st_mode))) return file;
  file.reset();
  errno = EINVAL;
  return {};
}

}  // namespace

UniqueFd open_append(const std::string& path) {
  return open_checked(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, true);
}
UniqueFd open_shared(const std::string& path) {
  return open_checked(path, O_RDWR | O_CREAT | O_NOFOLLOW, false);
}
UniqueFd open_regular(const std::string& path) { return open_checked(path, O_RDONLY, false); }

}  // namespace trainerd::base
