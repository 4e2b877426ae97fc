#include "io/lines/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>

#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"
#include "tests/io/temp_dir.h"

using trainerd::base::UniqueFd;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

/// A file that is full until it is read: a non-blocking pipe of one page.
struct SmallDisk {
  UniqueFd read_end, write_end;
  SmallDisk() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
    REQUIRE(::fcntl(ends[1], F_SETPIPE_SZ, 4096) == 4096);
  }
  std::string take() const {
    std::array<char, 65536> part{};
    const ssize_t n = ::read(read_end.get(), part.data(), part.size());
    return n > 0 ? std::string(part.data(), static_cast<std::size_t>(n)) : "";
  }
};

constexpr LineFile::Patience kNoPause{.waiting_bytes = 100'000, .first_pause = 0, .longest_pause = 0};

}  // namespace

TEST_CASE("lines wait for a full disk and are whole and in order when there is room again") {
  SmallDisk disk;
  LineFile file("log", kNoPause);
  file.attach(UniqueFd(disk.write_end.release()));
  std::string expected, read;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "line " + std::to_string(i);
    expected += line + "\n";
    file.append(line);
  }
  CHECK(file.record().failures > 0);
  CHECK(file.record().waiting > 500);
  CHECK_FALSE(file.record().error.empty());
  while (file.record().waiting > 0) {
    read += disk.take();
    expected += "next\n";
    file.append("next");
  }
  read += disk.take();
  CHECK(read == expected);
  CHECK(file.record().dropped == 0);
  CHECK(file.record().error.empty());
  CHECK(file.finish(0));
}

TEST_CASE("what waits is bounded, and what is lost is counted") {
  SmallDisk disk;
  LineFile file("log", {.waiting_bytes = 1000, .first_pause = 0, .longest_pause = 0});
  file.attach(UniqueFd(disk.write_end.release()));
  constexpr std::int64_t kLines = 2000;
  for (std::int64_t i = 0; i < kLines; ++i) file.append("123456789");
  const OutletRecord record = file.record();
  CHECK(record.waiting <= 100);
  CHECK(record.dropped > 0);
  // Waiting lines are written in order and complete.
  std::string read = disk.take();
  CHECK_FALSE(file.finish(0));
  read += disk.take();
  CHECK(read.size() == static_cast<std::size_t>(10 * (kLines - file.record().dropped)));
  for (std::size_t at = 0; at < read.size(); at += 10) CHECK(read.substr(at, 10) == "123456789\n");
}

TEST_CASE("lines from before the file is there come first") {
  const TempDir dir;
  LineFile file("log");
  file.append("early");
  CHECK(file.record().waiting == 1);
  file.attach(UniqueFd(::open((dir / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)));
  file.append("late");
  CHECK(read_file(dir / "log") == "early\nlate\n");
}

TEST_CASE("the lines of a file that is removed while it is written are lost") {
  const TempDir dir;
  LineFile file("log");
  file.attach(UniqueFd(::open((dir / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)));
  file.append("one"), file.append("two");
  CHECK(file.record().error.empty());
  std::filesystem::remove(dir / "log");
  file.append("three"), file.append("four");
  CHECK(file.record().dropped == 4);
  CHECK_FALSE(file.finish(0));
  CHECK_THAT(lost_lines("a/log", file.record()).what(),
             Catch::StartsWith("a/log was removed while the run wrote it: its last 4 lines are lost"));
}

TEST_CASE("lines that were taken back are cut from the file, and from what waits") {
  const TempDir dir;
  LineFile file("log", kNoPause);
  file.append("waits");
  file.append("is taken back");
  file.take_back(14);
  CHECK(file.record().waiting == 1);
  file.attach(trainerd::base::open_append(dir / "log"));
  file.append("one");
  file.append("two");
  CHECK(read_file(dir / "log") == "waits\none\ntwo\n");
  file.take_back(8);
  CHECK(read_file(dir / "log") == "waits\n");
  file.append("three");
  CHECK(read_file(dir / "log") == "waits\nthree\n");
}

TEST_CASE("what cannot be cut keeps what it got, and lines that wait are taken back all the same") {
  SmallDisk disk;
  LineFile file("log", kNoPause);
  file.attach(UniqueFd(disk.write_end.release()));
  const std::string large(4096 - 1, 'x');
  CHECK(file.append(large));
  CHECK(file.append("waits"));
  file.take_back(6 + 4096);
  CHECK(file.record().waiting == 0);
  CHECK(disk.take() == large + "\n");
  file.append("next");
  CHECK(disk.take() == "next\n");
}
