#include "io/files/data_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

base::DataError cannot_be_read(const std::string& path, int error) {
  return base::data_error(path + ": cannot be read: " + base::errno_text(error));
}

// Returns the part of `out` that the object fills from `offset` on.
std::span<std::byte> within(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out) {
  const std::int64_t left = std::max<std::int64_t>(0, object.bytes - offset);
  return out.first(static_cast<std::size_t>(std::min(left, static_cast<std::int64_t>(out.size()))));
}

}  // namespace

std::string DataFile::stamp() const {
  if (object_ != nullptr) return version();
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw cannot_be_read(path_, errno);
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) + ":" +
         std::to_string(status.st_size) + ":" + std::to_string(status.st_mtim.tv_sec) + "." +
         std::to_string(status.st_mtim.tv_nsec);
}

std::int64_t DataFile::bytes() const {
  if (object_ != nullptr) return object_->bytes;
  const std::int64_t bytes = base::file_bytes(fd_.get());
  if (bytes < 0) throw cannot_be_read(path_, errno);
  return bytes;
}

std::int64_t DataFile::read(std::int64_t offset, std::span<std::byte> out) const {
  if (object_ == nullptr) {
    const std::int64_t got = base::read_at(fd_.get(), out, offset);
    if (got < 0) throw cannot_be_read(path_, errno);
    return got;
  }
  out = within(*object_, offset, out);
  if (!out.empty()) reader_->read(*object_, offset, out);
  return static_cast<std::int64_t>(out.size());
}

std::int64_t DataFile::read_once(std::int64_t offset, std::span<std::byte> out) const {
  if (object_ == nullptr) return read(offset, out);
  out = within(*object_, offset, out);
  if (!out.empty()) reader_->read_once(*object_, offset, out);
  return static_cast<std::int64_t>(out.size());
}

void DataFile::announce(std::int64_t offset, std::int64_t bytes) const {
  if (object_ != nullptr) reader_->announce(*object_, offset, bytes);
}

ObjectReader& DataFiles::objects(const std::string& path) const {
  if (!objects_) throw base::data_error(path + ": objects at s3:// cannot be read here: name a local file");
  return *objects_;
}

DataFile DataFiles::open(const std::string& path) const {
  if (is_s3(path)) {
    const RemoteObject* object = objects(path).find(path);
    return object == nullptr ? DataFile() : DataFile(path, objects_, *object);
  }
  base::UniqueFd fd = base::open_read(path);
  if (!fd && errno != ENOENT) throw base::data_error(path + ": cannot be opened: " + base::errno_text(errno));
  return fd ? DataFile(path, std::move(fd)) : DataFile();
}

void DataFiles::stop() const {
  if (objects_) objects_->stop();
}

bool DataFiles::exists(const std::string& path) const {
  if (is_s3(path)) return objects(path).find(path) != nullptr;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool DataFiles::is_file(const std::string& path) const {
  if (is_s3(path)) return exists(path);
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::vector<std::string> DataFiles::list_objects(const std::string& path) const {
  return objects(path).list(path);
}

}  // namespace trainerd::io
