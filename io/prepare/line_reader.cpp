#include "io/prepare/line_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 31;
// Two buffers, rounded up to whole blocks.
static_assert(LineReader::kAheadBytes >=
              2 * static_cast<std::int64_t>(kBufferBytes) + 2 * ObjectReader::kBlockBytes);

}  // namespace

LineReader::LineReader(const std::string& path, std::int64_t from, const DataFiles& files)
    : path_(path), file_(files.open(path)), offset_(from), buffer_(kBufferBytes) {
  if (!file_) throw base::data_error(path + ": cannot be opened: " + base::errno_text(ENOENT));
}

std::optional<LineReader::Line> LineReader::next() {
  for (std::size_t searched = begin_;;) {
    const void* found = std::memchr(buffer_.data() + searched, '\n', end_ - searched);
    if (found != nullptr || (at_end_ && end_ > begin_)) {
      const std::size_t end =
          found == nullptr ? end_
                           : static_cast<std::size_t>(static_cast<const char*>(found) - buffer_.data());
      const Line line{offset_ + static_cast<std::int64_t>(begin_), {buffer_.data() + begin_, end - begin_}};
      begin_ = std::min(end + 1, end_);
      return line;
    }
    if (at_end_) return std::nullopt;
    // Moves the rest to the front. The buffer grows if the rest fills most of it.
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    offset_ += static_cast<std::int64_t>(begin_);
    end_ -= begin_;
    begin_ = 0;
    searched = end_;
    if (end_ >= kMaxLineBytes)
      throw base::data_error(path_ + ": the line at byte " + std::to_string(offset_) +
                             " has 2 GiB or more: split it into documents");
    if (end_ * 2 > buffer_.size()) buffer_.resize(buffer_.size() * 2);
    const std::int64_t at = offset_ + static_cast<std::int64_t>(end_);
    const auto room = std::as_writable_bytes(std::span(buffer_).subspan(end_));
    // The next buffer is fetched meanwhile.
    file_.announce(at, static_cast<std::int64_t>(room.size() + kBufferBytes));
    const std::int64_t got = file_.read(at, room);
    at_end_ = got == 0;
    end_ += static_cast<std::size_t>(got);
  }
}

std::int64_t line_number(const std::string& path, std::int64_t offset, const DataFiles& files) {
  LineReader lines(path, 0, files);
  std::int64_t number = 1;
  for (auto line = lines.next(); line && line->offset < offset; line = lines.next()) ++number;
  return number;
}

}  // namespace trainerd::io
