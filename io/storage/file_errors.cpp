#include "io/storage/file_errors.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

namespace trainerd::io {

bool is_absence(int error) { return error == ENOENT || error == ENOTDIR; }

bool is_transient(int error) {
  switch (error) {
    case EIO:
    case ESTALE:
    case EMFILE:
    case ENFILE:
    case EINTR:
    case ETIMEDOUT:
    case EAGAIN:
    case ENOMEM:
    case EBUSY:
    case ENOTCONN:
    case EHOSTDOWN:
    case EHOSTUNREACH: return true;
    default: return false;
  }
}

bool is_full_disk(int error) { return error == ENOSPC || error == EDQUOT; }

std::string remedy_of(int error, bool write) {
  if (is_full_disk(error)) return "; the disk is full: free some space";
  if (error == EFBIG) return "; the limit on file sizes is reached: raise it (ulimit -f)";
  if (error == EMFILE) return "; the process has too many files open: raise the limit (ulimit -n)";
  if (error == EACCES || error == EPERM || error == EROFS)
    return write ? "; make it writable for this user, or choose a directory that is"
                 : "; make it readable for this user";
  if (is_transient(error)) return "; the file system failed: check it, then run again";
  return "";
}

int with_retries(const std::function<int()>& operation) {
  constexpr std::array<int, 6> kWaitMilliseconds = {50, 100, 200, 400, 600, 650};
  int error = operation();
  for (const int wait : kWaitMilliseconds) {
    if (!is_transient(error)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    error = operation();
  }
  return error;
}

base::SpecError open_error(const std::string& path, int error, std::source_location where) {
  if (error != ELOOP && error != EINVAL) return output_error(path, "open", error, where);
  return base::spec_error(
      path + " is not a regular file; remove it: nothing is written through links in the output directory",
      where);
}

base::SpecError output_error(const std::string& path, const char* doing, int error,
                             std::source_location where) {
  return base::spec_error(
      path + ": cannot " + doing + ": " + base::errno_text(error) + remedy_of(error, true), where);
}

}  // namespace trainerd::io
