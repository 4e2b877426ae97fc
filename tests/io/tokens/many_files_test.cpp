#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "io/tokens/fd_cache.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

/// Lowers the limit on open descriptors during its lifetime.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower{limit, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("hundreds of files are read under a limit of a few descriptors") {
  const TempDir dir;
  for (int i = 0; i < 300; ++i)
    write_file(dir / std::to_string(1000 + i), std::string(10, static_cast<char>(1 + i % 255)));
  const DescriptorLimit limit(open_descriptors() + 10);
  TokenSource source({dir.path()}, DataOptions{}, 9, 256, 1, SampleOrder::in_order);
  REQUIRE(source.tokens() == 3000);
  std::vector<std::int32_t> tokens(10);
  for (int round = 0; round < 2; ++round)
    for (std::int64_t c = 0; c < source.samples(); ++c) {
      source.read(c, tokens);
      for (std::int64_t i = 0; i < 10; ++i)
        REQUIRE(tokens[static_cast<std::size_t>(i)] == 1 + (c * 9 + i) / 10 % 255);
    }
}

TEST_CASE("the descriptor cache keeps no more open than its limit and keeps the recently used ones") {
  const TempDir dir;
  std::vector<std::string> paths;
  for (int i = 0; i < 6; ++i) {
    paths.push_back(dir / std::to_string(i));
    write_file(paths.back(), "x");
  }
  FdCache cache(6, 3);
  const std::size_t before = open_descriptors();
  for (std::size_t i = 0; i < 3; ++i) cache.get(i, paths[i], 1);
  cache.get(0, paths[0], 1);
  cache.get(3, paths[3], 1);  // replaces file 1
  CHECK(open_descriptors() == before + 3);
  for (const std::string& path : paths) std::filesystem::remove(path);
  CHECK_NOTHROW(cache.get(0, paths[0], 1));
  CHECK_NOTHROW(cache.get(2, paths[2], 1));
  CHECK_THROWS_AS(cache.get(1, paths[1], 1), trainerd::base::DataError);
}
