#include "io/storage/new_directory.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

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
  std::string unique = path_ + ".partial-XXXXXX";
  if (::mkdtemp(unique.data()) == nullptr) cannot(unique, "make this directory", errno);
  partial_ = unique;
  // As other directories: mkdtemp's are this user's alone.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::chmod(partial_.c_str(), 0777 & ~mask) != 0) cannot(partial_, "give others access to", errno);
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!completed_) fs::remove_all(partial_, ignored);
}

void NewDirectory::complete() {
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
