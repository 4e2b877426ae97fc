#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/top/frame.h"
#include "io/top/source.h"
#include "io/top/view.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

// As https://no-color.org: any non-empty value disables colours.
io::Line::Colors colors_here() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool none =
      (no_color != nullptr && *no_color != 0) || (term != nullptr && std::string_view(term) == "dumb");
  return none || ::isatty(STDOUT_FILENO) != 1 ? io::Line::Colors::none : io::Line::Colors::ansi;
}

// The terminal's width, else COLUMNS, else 80.
std::size_t columns_here() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string_view text = std::getenv("COLUMNS") == nullptr ? "" : std::getenv("COLUMNS");
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  return error == std::errc() && end == text.data() + text.size() && columns > 0 ? columns : 80;
}

}  // namespace

int top_command(const TopArgs& args) {
  const std::unique_ptr<io::StatusSource> source = io::open_status_source(args.target);
  if (args.once) {
    const io::StatusReading reading = source->read();
    std::string text;
    for (const std::string& line : io::top_frame(reading.status, {.columns = columns_here(),
                                                                 .rows = 0,
                                                                 .colors = colors_here(),
                                                                 .warning = reading.warning,
                                                                 .no_ranks = reading.no_ranks}))
      text += line + "\n";
    print(text);
    return 0;
  }
  const char* term = std::getenv("TERM");
  if (::isatty(STDOUT_FILENO) != 1 || (term != nullptr && std::string_view(term) == "dumb"))
    throw base::spec_error(
        "trainerd top draws on a terminal, and standard output is none: --once prints it once");
  const int signal = io::show_live(*source, STDOUT_FILENO, colors_here());
  return signal == 0 ? 0 : kExitOfSignal + signal;
}

}  // namespace trainerd::apps
