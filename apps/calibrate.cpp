#include "core/plan/calibrate/calibrate.h"

#include <unistd.h>

#include <ctime>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/version/version.h"
#include "io/console/screen.h"
#include "io/text/text.h"

namespace trainerd::apps {

int calibrate_command(const CalibrateArgs& args) {
  if (!args.out.empty()) require_writable("--out", args.out);
  core::plan::CalibrateOptions options;
  options.device = args.device == "cuda" ? core::job::DeviceChoice::cuda : core::job::DeviceChoice::cpu;
  options.seconds = args.seconds;
  options.threads = args.threads;
  options.ranks = args.ranks;
  // To standard error, because the cluster file may go to standard output.
  io::Screen screen(STDERR_FILENO,
                    ::isatty(STDERR_FILENO) == 1 ? io::Screen::Style::terminal : io::Screen::Style::plain);
  screen.line("measuring this machine's operators and links for about " +
              io::short_duration(options.seconds) + "; other work on it makes them slower than they are");
  options.progress = [&screen](const std::string& what, double share) {
    constexpr int kCells = 24;
    const int full = static_cast<int>(share * kCells);
    std::string bar;
    for (int i = 0; i < kCells; ++i) bar += i < full ? "█" : "·";
    screen.status(bar + " " + std::to_string(static_cast<int>(100 * share)) + "%  " + what);
  };
  const core::plan::Calibration made = core::plan::calibrate(options);
  screen.status("");
  screen.line("measured: " + std::to_string(made.rounds) + (made.rounds == 1 ? " round" : " rounds") +
              " of " + std::to_string(made.models) + " models");
  screen.finish();
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&now, &day);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", &day);
  const std::string text = core::plan::cluster_yaml(
      made, std::string("measured ") + date + ", trainerd " + core::version::version());
  if (args.out.empty()) print(text);
  else write_file("--out", args.out, text);
  return kExitDone;
}

}  // namespace trainerd::apps
