#include "io/storage/local_storage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

base::CheckpointError failed(const std::string& path, const std::string& what, int error,
                             std::source_location where = std::source_location::current()) {
  std::string remedy;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "; free some space or set output: to another disk";
  if (error == EACCES || error == EPERM || error == EROFS)
    remedy = "; set output: to a directory that can be written";
  return base::checkpoint_error(path + ": cannot " + what + ": " + base::errno_text(error) + remedy, where);
}

class LocalFile final : public StoredFile {
 public:
  LocalFile(std::string path, base::UniqueFd fd, std::int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}
  std::int64_t bytes() const override { return bytes_; }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    const std::int64_t got = base::read_at(fd_.get(), out, offset);
    if (got < 0) throw failed(path_, "read", errno);
    if (std::cmp_less(got, out.size()))
      throw base::checkpoint_error(path_ + ": ends " +
                                   std::to_string(static_cast<std::int64_t>(out.size()) - got) +
                                   " bytes too early, at " + std::to_string(offset + got));
  }

 private:
  std::string path_;
  base::UniqueFd fd_;
  std::int64_t bytes_;
};

}  // namespace

std::string LocalStorage::path_of(const std::string& name) const {
  return name.empty() ? root_ : (fs::path(root_) / name).string();
}

void LocalStorage::make_folder(const std::string& name) {
  std::error_code error;
  fs::create_directories(path_of(name), error);
  if (error) throw failed(path_of(name), "make this directory", error.value());
}

std::vector<std::string> LocalStorage::list(const std::string& name) const {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path_of(name), error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error && error.value() != ENOENT) throw failed(path_of(name), "list this directory", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool LocalStorage::exists(const std::string& name) const {
  std::error_code error;
  return fs::exists(path_of(name), error);
}

void LocalStorage::write(const std::string& name, std::span<const std::byte> bytes) {
  const std::string path = path_of(name);
  const base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) throw failed(path, "make this file", errno);
  if (const int error = base::write_all(fd.get(), bytes); error != 0) throw failed(path, "write", error);
  if (::fsync(fd.get()) != 0) throw failed(path, "flush to the disk", errno);
}

std::unique_ptr<StoredFile> LocalStorage::open(const std::string& name) const {
  const std::string path = path_of(name);
  base::UniqueFd fd = base::open_read(path);
  if (!fd) throw failed(path, "open", errno);
  const std::int64_t bytes = base::file_bytes(fd.get());
  if (bytes < 0) throw failed(path, "ask for the size", errno);
  return std::make_unique<LocalFile>(path, std::move(fd), bytes);
}

void LocalStorage::rename(const std::string& from, const std::string& to) {
  if (::rename(path_of(from).c_str(), path_of(to).c_str()) != 0)
    throw failed(path_of(from), "rename to " + path_of(to), errno);
}

void LocalStorage::remove(const std::string& name) {
  std::error_code error;
  fs::remove_all(path_of(name), error);
  if (error) throw failed(path_of(name), "remove", error.value());
}

void LocalStorage::sync_folder(const std::string& name) {
  if (const int error = base::sync_directory(path_of(name)); error != 0)
    throw failed(path_of(name), "flush to the disk", error);
}

}  // namespace trainerd::io
