#include "io/checkpoint/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "io/storage/file_errors.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

[[noreturn]] void cannot(const std::string& path, const std::string& what, int error) {
  throw StorageError(path + ": cannot " + what + ": " + base::errno_text(error) + remedy_of(error, true),
                     error);
}

}  // namespace

TensorFileWriter::TensorFileWriter(std::string path, const SafetensorsLayout& layout)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)),
      expected_(layout.file_bytes) {
  if (!fd_) cannot(path_, "make this file", errno);
  put(layout.header);
}

void TensorFileWriter::put(std::span<const std::byte> bytes) {
  if (const int error = base::write_all(fd_.get(), bytes); error != 0) cannot(path_, "write", error);
  hash_.update(bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

void TensorFileWriter::append(std::span<const std::byte> bytes) { put(bytes); }

ShardInfo TensorFileWriter::finish() {
  base::check(bytes_ == expected_, "every tensor of the layout was written");
  if (::fsync(fd_.get()) != 0) cannot(path_, "flush to the disk", errno);
  return {std::filesystem::path(path_).filename().string(), bytes_, hash_.hex()};
}

}  // namespace trainerd::io
