#include "io/lines/log_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "io/storage/file_errors.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

base::SpecError failed(const std::string& path, const char* what, int error, bool write) {
  return base::spec_error(path + ": cannot " + what + ": " + base::errno_text(error) +
                          remedy_of(error, write));
}

// Returns an empty descriptor if there is no such file.
base::UniqueFd open_log(const std::string& path) {
  base::UniqueFd fd;
  struct stat status {};
  const int error = with_retries([&] {
    fd = base::UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    return fd && ::fstat(fd.get(), &status) == 0 ? 0 : errno;
  });
  if (error != 0 && !is_absence(error)) throw failed(path, "read", error, false);
  if (fd && !S_ISREG(status.st_mode)) fd.reset();
  return fd;
}

}  // namespace

void read_log_lines(const std::string& path,
                    const std::function<bool(const std::string& line, bool torn)>& visit) {
  const base::UniqueFd fd = open_log(path);
  if (!fd) return;
  std::vector<char> chunk(std::size_t{1} << 18);
  std::string line;
  for (std::int64_t at = 0;;) {
    std::int64_t got = 0;
    const int error = with_retries([&] {
      got = base::read_at(fd.get(), std::as_writable_bytes(std::span(chunk)), at);
      return got < 0 ? errno : 0;
    });
    if (error != 0) throw failed(path, "read", error, false);
    if (got == 0) break;
    at += got;
    for (const char c : std::span(chunk).first(static_cast<std::size_t>(got))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      if (!visit(line, false)) return;
      line.clear();
    }
  }
  if (!line.empty()) visit(line, true);
}

std::string set_aside(const std::string& path, const std::vector<GarbledLine>& lines) {
  const std::string aside = path + ".garbled";
  std::string text;
  for (const GarbledLine& line : lines) text += line.text + "\n";
  const base::UniqueFd fd = base::open_append(aside);
  if (!fd) throw failed(aside, "open", errno, true);
  if (const int error = base::write_all(fd.get(), std::as_bytes(std::span(text))); error != 0)
    throw failed(aside, "write", error, true);
  if (::fsync(fd.get()) != 0) throw failed(aside, "flush to the disk", errno, true);
  return path + ": line " + std::to_string(lines.front().number) + " is no record" +
         (lines.size() == 1 ? ", it was"
                            : ", nor are " + std::to_string(lines.size() - 1) + " others; they were") +
         " moved to " + aside;
}

}  // namespace trainerd::io
