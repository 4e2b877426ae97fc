#include "io/console/screen.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "kernels/base/fd.h"
#include "tests/io/temp_dir.h"

using trainerd::base::UniqueFd;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

struct Pipe {
  UniqueFd read_end, write_end;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
  }
};

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 65536> part{};
  for (ssize_t n = 0; (n = ::read(fd, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(n));
  return text;
}

/// Returns the rows that a terminal shows after this output.
std::vector<std::string> rows(const std::string& written) {
  std::vector<std::string> rows{""};
  for (std::size_t at = 0; at < written.size();) {
    if (written.compare(at, 4, "\r\033[K") == 0) {
      rows.back().clear();
      at += 4;
    } else if (written[at] == '\n') {
      rows.emplace_back();
      ++at;
    } else {
      rows.back() += written[at++];
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("a stalled reader delays no writer and learns how many lines it missed") {
  constexpr std::int64_t kLines = 100'000;  // 1.1 MB: more than the pipe and the queue can hold
  Pipe pipe;
  std::int64_t dropped = 0;
  {
    Screen screen(pipe.write_end.get(), Screen::Style::plain);
    for (std::int64_t i = 0; i < kLines; ++i) screen.line("line " + std::to_string(100'000 + i));
    CHECK((::fcntl(pipe.write_end.get(), F_GETFL) & O_NONBLOCK) == 0);
    dropped = screen.lost().lines;
    CHECK(screen.lost().reason == "nothing reads it");
    const auto begin = std::chrono::steady_clock::now();
    screen.finish();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  }
  CHECK(dropped > kLines / 2);
  pipe.write_end.reset();
  std::istringstream text(read_to_end(pipe.read_end.get()));
  std::int64_t read = 0, told = 0;
  std::string line, last;
  for (; std::getline(text, line); last = line) {
    if (line.starts_with("(")) {
      told += std::stoll(line.substr(1));
      continue;
    }
    CHECK(line.size() == 11);
    ++read;
  }
  CHECK(told == dropped);
  CHECK(read + dropped == kLines);
  CHECK(last == "line 199999");  // the newest lines are kept
}

TEST_CASE("lines of several threads and the status do not tear each other") {
  Pipe pipe;
  std::string written;
  std::thread reader([&] { written = read_to_end(pipe.read_end.get()); });
  {
    Screen screen(pipe.write_end.get(), Screen::Style::terminal);
    pipe.write_end.reset();
    std::vector<std::jthread> writers;
    for (const char letter : {'a', 'b', 'c'})
      writers.emplace_back([&screen, letter] {
        for (int i = 0; i < 500; ++i) {
          screen.line(std::string(70, letter));
          screen.status(std::string(60, '='));
        }
      });
  }
  reader.join();
  const std::vector<std::string> seen = rows(written);
  REQUIRE(seen.size() == 3 * 500 + 2);  // the status remains as a line
  for (std::size_t i = 0; i + 2 < seen.size(); ++i)
    CHECK((seen[i] == std::string(70, 'a') || seen[i] == std::string(70, 'b') ||
           seen[i] == std::string(70, 'c')));
  CHECK(seen[seen.size() - 2] == std::string(60, '='));
  CHECK(seen.back().empty());
}

TEST_CASE("a status is drawn on a terminal alone") {
  const TempDir dir;
  const UniqueFd fd(::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  Screen screen(fd.get(), Screen::Style::plain);
  screen.status("half");
  screen.line("a line");
  screen.finish();
  CHECK(read_file(dir / "out") == "a line\n");
}

TEST_CASE("a closed pipe ends the output without a signal, and its lines are counted") {
  // The default action of SIGPIPE would end this process.
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  Pipe pipe;
  pipe.read_end.reset();
  Screen screen(pipe.write_end.get(), Screen::Style::plain);
  screen.line("one");
  screen.finish();
  screen.line("two");
  CHECK(screen.lost().lines == 2);
  CHECK(screen.lost().reason == "Broken pipe");
  std::signal(SIGPIPE, before);
}

TEST_CASE("a terminal gets long lines broken at spaces to its width, and words whole") {
  const TempDir dir;
  const auto shown = [&dir](const std::string& line) {
    const UniqueFd fd(::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    Screen screen(fd.get(), Screen::Style::terminal);  // width unknown, so 80
    screen.line(line);
    screen.finish();
    return read_file(dir / "out");
  };
  const std::string seventy(70, 'x'), hundred(100, 'y');
  CHECK(shown(seventy + " 123456789") == seventy + " 123456789\n");  // 80 columns
  CHECK(shown(seventy + " 1234567890") == seventy + "\n    1234567890\n");
  const std::string forty(40, 'z');
  CHECK(shown("  step time      " + forty + " " + forty + " 12") ==
        "  step time      " + forty + "\n" + std::string(17, ' ') + forty + " 12\n");
  CHECK(shown("a " + hundred + " b") == "a\n    " + hundred + "\n    b\n");
  std::string bars;
  for (int i = 0; i < 70; ++i) bars += "\u2588";
  CHECK(shown(bars + " 123456789") == bars + " 123456789\n");
  CHECK(shown("\033[33mwarning: " + std::string(60, 'x') + " 1234567890\033[0m") ==
        "\033[33mwarning: " + std::string(60, 'x') + " 1234567890\033[0m\n");
}
