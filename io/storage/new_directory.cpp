#include "io/storage/new_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".partial-";
constexpr const char* kLock = ".trainerd-lock";
constexpr int kAttempts = 16;

[[noreturn]] void cannot(const std::string& path, const std::string& what, int error) {
  throw StorageError(path + ": cannot " + what + ": " + base::errno_text(error) + remedy_of(error, true),
                     error);
}

std::string absolute(const std::string& path) {
  std::string text = fs::absolute(local_path(path)).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

NewDirectory::NewDirectory(const std::string& path) : path_(absolute(path)) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path_, error);
  const bool there = fs::exists(status);
  if (there && !(fs::is_directory(status) && fs::is_empty(path_, error)))
    throw base::checkpoint_error(path_ + ": exists already: remove it, or choose another directory");
  fs::create_directories(fs::path(path_).parent_path(), error);
  if (error) cannot(path_, "make this directory", error.value());
  remove_leftovers();
  // Before it is locked, another process may take a new directory for a leftover and remove it.
  for (int attempt = 0; !make(); ++attempt)
    if (attempt == kAttempts) cannot(partial_, "lock a file in this directory", EWOULDBLOCK);
  // Gives the usual access rights: mkdtemp restricts the directory to this user.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::chmod(partial_.c_str(), 0777 & ~mask) != 0) cannot(partial_, "give others access to", errno);
}

bool NewDirectory::make() {
  std::string unique = path_ + kEnding + "XXXXXX";
  if (::mkdtemp(unique.data()) == nullptr) cannot(unique, "make this directory", errno);
  partial_ = unique;
  const std::string lock = partial_ + "/" + kLock;
  lock_ = base::UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock_ && errno != ENOENT) {
    const int error = errno;
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
    cannot(lock, "make this file", error);
  }
  struct stat status {};
  return lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(lock_.get(), &status) == 0 &&
         status.st_nlink > 0;
}

/// Removes temporary directories whose lock is free.
void NewDirectory::remove_leftovers() const {
  const fs::path path(path_);
  const std::string begin = path.filename().string() + kEnding;
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(path.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.size() == begin.size() + 6 && name.starts_with(begin)) found.push_back(it->path());
  }
  for (const fs::path& left : found) {
    const base::UniqueFd lock(::open((left / kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(left, error);
  }
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!completed_) fs::remove_all(partial_, ignored);
}

void NewDirectory::complete() {
  const std::string lock = partial_ + "/" + kLock;
  if (::unlink(lock.c_str()) != 0) cannot(lock, "remove this file", errno);
  if (const int error = base::sync_directory(partial_); error != 0)
    cannot(partial_, "flush to the disk", error);
  std::error_code error;
  fs::rename(partial_, path_, error);
  if (error) cannot(partial_, "rename to " + path_, error.value());
  completed_ = true;
  if (const int failed = base::sync_directory(fs::path(path_).parent_path().string()); failed != 0)
    cannot(path_, "flush to the disk", failed);
}

}  // namespace trainerd::io
