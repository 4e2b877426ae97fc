#include "kernels/base/atomic_file.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>

#include "tests/io/temp_dir.h"

using trainerd::base::write_file_atomically;
using namespace trainerd::test;

namespace {

int write_text(const std::string& path, const std::string& text) {
  return write_file_atomically(path, std::as_bytes(std::span(text)));
}

/// Limits the size of this process's files to `bytes` during its lifetime.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("an atomic write replaces the old file and leaves no temporary file") {
  const TempDir dir;
  CHECK(write_text(dir / "f", "first, and longer") == 0);
  CHECK(write_text(dir / "f", "second") == 0);
  CHECK(read_file(dir / "f") == "second");
  CHECK_FALSE(std::filesystem::exists(dir / "f.partial"));
}

TEST_CASE("a failed atomic write keeps the old file and leaves no temporary file") {
  const TempDir dir;
  REQUIRE(write_text(dir / "f", "old") == 0);
  int error = 0;
  {
    const FileSizeLimit limit(1000);
    error = write_text(dir / "f", std::string(5000, 'x'));
  }
  CHECK(error == EFBIG);
  CHECK(read_file(dir / "f") == "old");
  CHECK_FALSE(std::filesystem::exists(dir / "f.partial"));
  // A directory is in the way: the rename fails.
  std::filesystem::create_directories(dir / "d/inside");
  CHECK(write_text(dir / "d", "text") != 0);
  CHECK_FALSE(std::filesystem::exists(dir / "d.partial"));
  CHECK(write_text(dir / "nowhere/f", "text") == ENOENT);
}

TEST_CASE("an atomic write follows no link planted in its way") {
  const TempDir dir;
  REQUIRE(write_text(dir / "mine", "precious") == 0);
  std::filesystem::create_symlink(dir / "mine", dir / "f.partial");
  std::filesystem::create_symlink(dir / "mine", dir / "f");
  CHECK(write_text(dir / "f", "new") == 0);
  CHECK(read_file(dir / "f") == "new");
  CHECK(read_file(dir / "mine") == "precious");
}
