#include "apps/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "io/console/screen.h"
#include "kernels/base/error.h"

namespace trainerd::apps {

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0)
    throw base::spec_error("cannot write to standard output: " + base::errno_text(errno));
}

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    // Lower descriptors are open now, so open() returns this one.
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
}

void print_error(const std::string& line) {
  try {
    io::Screen(STDERR_FILENO, io::Screen::Style::plain).line(line);
  } catch (const std::system_error&) {  // no thread can be created
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

namespace {

base::SpecError unwritable(const std::string& option, const std::string& path, int error) {
  return base::spec_error(option + ": cannot write " + path + ": " + base::errno_text(error));
}

}  // namespace

void require_writable(const std::string& option, const std::string& path) {
  const bool there = ::access(path.c_str(), F_OK) == 0;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) throw unwritable(option, path, errno);
  std::fclose(file);
  if (!there) ::unlink(path.c_str());
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const auto failed = [&](int error) { return unwritable(option, path, error); };
  if (file == nullptr) throw failed(errno);
  // A buffered write may fail only at the flush; the first error counts.
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int error = written ? 0 : errno;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) throw failed(written ? errno : error);
}

}  // namespace trainerd::apps
