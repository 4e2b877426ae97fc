// A directory that is created atomically.

#include "io/storage/new_directory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;

namespace {

std::vector<std::string> names_in(const TempDir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("what a killed process left of a new directory is removed by the next, and nothing else") {
  const TempDir dir;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const NewDirectory killed(dir / "out");
    write_file(killed.partial() + "/half", "x");
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  REQUIRE(names_in(dir).size() == 1);
  std::filesystem::create_directory(dir / "out.partial-mine00");  // not made by this program
  {
    const NewDirectory working(dir / "out");
    CHECK(names_in(dir).size() == 2);
    // A directory that another process is still filling stays.
    NewDirectory second(dir / "out");
    CHECK(std::filesystem::exists(working.partial()));
    write_file(second.partial() + "/whole", "x");
    second.complete();
  }
  CHECK(names_in(dir) == std::vector<std::string>{"out", "out.partial-mine00"});
  CHECK(std::filesystem::exists(dir / "out/whole"));
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "out"), {}) == 1);
}
