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

std::int64_t index_bytes(std::int64_t documents) { return 34 + documents * 20 + 8; }

IndexedWriter::Growing::Growing(std::string name) : path(std::move(name)) {
  const std::string partial = path + ".partial";
  ::unlink(partial.c_str());
  fd = base::UniqueFd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd) throw write_error(partial, errno);
}

IndexedWriter::Growing::~Growing() {
  if (!finished) ::unlink((path + ".partial").c_str());
}

void IndexedWriter::Growing::flush() {
  hash.update(buffer);
  if (const int error = base::write_all(fd.get(), buffer); error != 0)
    throw write_error(path + ".partial", error);
  bytes += static_cast<std::int64_t>(buffer.size());
  buffer.clear();
}

void IndexedWriter::Growing::close() {
  flush();
  if (::fsync(fd.get()) != 0) throw write_error(path + ".partial", errno);
  fd.reset();
}

void IndexedWriter::Growing::publish() {
  if (std::rename((path + ".partial").c_str(), path.c_str()) != 0) throw write_error(path, errno);
  finished = true;
}

IndexedWriter::IndexedWriter(std::string stem, TokenType type, LossMask mask)
    : stem_(std::move(stem)), type_(type), bin_(stem_ + ".bin") {
  if (mask == LossMask::written) mask_.emplace(stem_ + ".mask");
}

IndexedWriter::~IndexedWriter() = default;

void IndexedWriter::add_document(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw base::data_error("a document has " + std::to_string(ids.size()) +
                           " tokens; the index counts up to 2147483647: split it");
  base::check(mask.size() == (mask_ ? ids.size() : 0), "a mask has a value for each token");
  lengths_.push_back(static_cast<std::int32_t>(ids.size()));
  totals_.tokens += static_cast<std::int64_t>(ids.size());
  if (type_ == TokenType::uint8) append_as<std::uint8_t>(bin_.buffer, ids);
  else if (type_ == TokenType::uint16) append_as<std::uint16_t>(bin_.buffer, ids);
  else append_as<std::int32_t>(bin_.buffer, ids);
  if (bin_.buffer.size() >= kFlushBytes) bin_.flush();
  if (!mask_) return;
  const auto bytes = std::as_bytes(mask);
  mask_->buffer.insert(mask_->buffer.end(), bytes.begin(), bytes.end());
  for (const std::uint8_t value : mask) totals_.learned += value;
  if (mask_->buffer.size() >= kFlushBytes) mask_->flush();
}

IndexedTotals IndexedWriter::finish() {
  bin_.close();
  if (mask_) mask_->close();
  totals_.documents = static_cast<std::int64_t>(lengths_.size());
  totals_.bin_bytes = bin_.bytes;
  totals_.bin_hash = bin_.hash.hex();
  if (mask_) totals_.mask_hash = mask_->hash.hex();

  std::vector<std::byte> index;
  index.reserve(static_cast<std::size_t>(index_bytes(totals_.documents)));
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
  if (mask_) mask_->publish();
  bin_.publish();
  return totals_;
}

}  // namespace trainerd::io
