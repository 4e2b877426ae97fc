#include "kernels/base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "kernels/base/fd.h"

namespace trainerd::base {
namespace {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

int write_and_flush(const std::string& path, std::span<const std::byte> bytes, unsigned mode) {
  // Remove what a killed process left. The file must be new, so that a link planted under this name is not
  // followed.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno;
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd) return errno;
  if (const int error = write_all(fd.get(), bytes); error != 0) return error;
  return ::fsync(fd.get()) == 0 ? 0 : errno;
}

}  // namespace

int write_file_atomically(const std::string& path, std::span<const std::byte> bytes, unsigned mode) {
  const std::string aside = path + ".partial";
  int error = write_and_flush(aside, bytes, mode);
  if (error == 0 && std::rename(aside.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(aside.c_str());
    return error;
  }
  return sync_directory(directory_of(path));
}

}  // namespace trainerd::base
