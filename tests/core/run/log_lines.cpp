#include "tests/core/run/log_lines.h"

#include <fcntl.h>

#include <cstddef>
#include <sstream>
#include <string_view>

#include "core/run/log/log.h"
#include "kernels/base/fd.h"
#include "tests/io/temp_dir.h"

namespace trainerd::test {
namespace {

// A line of run.log begins with "2026-01-31T12:00:00.123+0100 ", then "warning " or a shorter level with
// blanks up to that width.
constexpr std::size_t kTimeWidth = 29, kLevelWidth = 8;

bool begins_with_time(std::string_view line) {
  return line.size() >= kTimeWidth + kLevelWidth && line[10] == 'T' && line[19] == '.' &&
         line[kTimeWidth - 1] == ' ';
}

}  // namespace

struct LogLines::State {
  TempDir directory;
  std::shared_ptr<io::RunLog> file = std::make_shared<io::RunLog>();
  base::UniqueFd nothing{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
};

LogLines::LogLines() : state_(std::make_unique<State>()) {
  state_->file->open(state_->directory / "run.log");
  core::run::log::write_to(std::make_shared<io::Screen>(state_->nothing.get(), io::Screen::Style::plain),
                           state_->file);
}

LogLines::~LogLines() {
  core::run::log::write_to(std::make_shared<io::Screen>(1, io::Screen::Style::plain),
                           std::make_shared<io::RunLog>());
}

std::string LogLines::text() const {
  state_->file->finish();
  std::istringstream lines(read_file(state_->directory / "run.log"));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (begins_with_time(line)) {
      const std::string level = line.substr(kTimeWidth, kLevelWidth);
      line = level.substr(0, level.find(' ')) + ": " + line.substr(kTimeWidth + kLevelWidth);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace trainerd::test
