#include "io/prepare/indexed_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kFlushBytes = 1 << 20;

base::DataError write_error(const std::string& path, int error) {
  return base::data_error(path + ": cannot be written: " + base::errno_text(error) +
                          "; what is finished is kept for the next run of the same command");
}

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

template <class T>
void append_as(std::vector<std::byte>& bytes, std::span<const std::int32_t> ids) {
  const std::size_t at = bytes.size();
  bytes.resize(at + ids.size() * sizeof(T));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto value = static_cast<T>(ids[i]);
    std::memcpy(bytes.data() + at + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

IndexedWriter::IndexedWriter(std::string stem, TokenType type) : stem_(std::move(stem)), type_(type) {
  const std::string path = stem_ + ".bin.partial";
  ::unlink(path.c_str());
  fd_ = base::UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd_) throw write_error(path, errno);
}

IndexedWriter::~IndexedWriter() {
  if (!finished_) ::unlink((stem_ + ".bin.partial").c_str());
}

void IndexedWriter::add_document(std::span<const std::int32_t> ids) {
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw base::data_error("a document has " + std::to_string(ids.size()) +
                           " tokens; the index counts up to 2147483647: split it");
  lengths_.push_back(static_cast<std::int32_t>(ids.size()));
  totals_.tokens += static_cast<std::int64_t>(ids.size());
  if (type_ == TokenType::uint8) append_as<std::uint8_t>(buffer_, ids);
  else if (type_ == TokenType::uint16) append_as<std::uint16_t>(buffer_, ids);
  else append_as<std::int32_t>(buffer_, ids);
  if (buffer_.size() >= kFlushBytes) flush();
}

void IndexedWriter::flush() {
  hash_.update(buffer_);
  if (const int error = base::write_all(fd_.get(), buffer_); error != 0)
    throw write_error(stem_ + ".bin.partial", error);
  totals_.bin_bytes += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

IndexedTotals IndexedWriter::finish() {
  flush();
  if (::fsync(fd_.get()) != 0) throw write_error(stem_ + ".bin.partial", errno);
  fd_.reset();
  totals_.documents = static_cast<std::int64_t>(lengths_.size());
  totals_.bin_hash = hash_.hex();

  std::vector<std::byte> index;
  index.reserve(34 + lengths_.size() * 20 + 8);
  for (const char c : std::string_view("MMIDIDX\0\0", 9)) append(index, c);
  append(index, std::uint64_t{1});
  append(index, static_cast<std::uint8_t>(type_ == TokenType::uint8    ? 1
                                          : type_ == TokenType::uint16 ? 8
                                                                       : 4));
  append(index, static_cast<std::uint64_t>(lengths_.size()));
  append(index, static_cast<std::uint64_t>(lengths_.size()) + 1);
  for (const std::int32_t length : lengths_) append(index, length);
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    append(index, offset);
    offset += length * width_of(type_);
  }
  for (std::size_t document = 0; document <= lengths_.size(); ++document)
    append(index, static_cast<std::int64_t>(document));
  totals_.idx_bytes = static_cast<std::int64_t>(index.size());
  totals_.idx_hash = xxh3_hex(index);
  if (const int error = base::write_file_atomically(stem_ + ".idx", index); error != 0)
    throw write_error(stem_ + ".idx", error);
  if (std::rename((stem_ + ".bin.partial").c_str(), (stem_ + ".bin").c_str()) != 0)
    throw write_error(stem_ + ".bin", errno);
  finished_ = true;
  return totals_;
}

}  // namespace trainerd::io
