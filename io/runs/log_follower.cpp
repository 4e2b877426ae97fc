#include "io/runs/log_follower.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <vector>

#include "io/storage/file_errors.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kTailBytes = 512;  // covers a line of steps.jsonl, which ends with its wall time
constexpr std::size_t kChunkBytes = std::size_t{1} << 18;

// Returns an empty descriptor if there is no such file.
base::UniqueFd open_if_there(const std::string& path) {
  base::UniqueFd fd = base::open_regular(path);
  if (!fd && !is_absence(errno))
    throw base::spec_error(path + ": cannot read: " + base::errno_text(errno) + remedy_of(errno, false));
  return fd;
}

std::int64_t read_some(const std::string& path, int fd, std::span<char> to, std::int64_t at) {
  const std::int64_t got = base::read_at(fd, std::as_writable_bytes(to), at);
  if (got < 0) throw base::spec_error(path + ": cannot read: " + base::errno_text(errno));
  return got;
}

}  // namespace

bool LogFollower::replaced() {
  if (offset_ == 0) return false;
  const base::UniqueFd fd = open_if_there(path_);
  bool same = false;
  if (fd) {
    std::string now(tail_.size(), '\0');
    const std::int64_t got =
        read_some(path_, fd.get(), now, offset_ - static_cast<std::int64_t>(tail_.size()));
    same = std::cmp_equal(got, tail_.size()) && now == tail_;
  }
  if (same) return false;
  offset_ = 0;
  tail_.clear();
  return true;
}

void LogFollower::read(const std::function<void(const std::string& line)>& visit) {
  const base::UniqueFd fd = open_if_there(path_);
  if (!fd) return;
  std::vector<char> chunk(kChunkBytes);
  std::string line;
  for (std::int64_t at = offset_;;) {
    const std::int64_t got = read_some(path_, fd.get(), chunk, at);
    if (got == 0) return;
    at += got;
    for (const char c : std::span(chunk).first(static_cast<std::size_t>(got))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      offset_ += static_cast<std::int64_t>(line.size()) + 1;
      tail_ += line + "\n";
      tail_.erase(0, tail_.size() - std::min(tail_.size(), kTailBytes));
      visit(line);
      line.clear();
    }
  }
}

}  // namespace trainerd::io
