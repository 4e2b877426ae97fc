#include "core/plan/calibrate.h"

#include <ctime>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/version.h"

namespace trainerd::apps {

int calibrate_command(const CalibrateArgs& args) {
  core::CalibrateOptions options;
  options.device = args.device == "cuda" ? core::DeviceChoice::cuda : core::DeviceChoice::cpu;
  options.seconds = args.seconds;
  options.threads = args.threads;
  options.ranks = args.ranks;
  const core::Calibration made = core::calibrate(options);
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&now, &day);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", &day);
  const std::string text = core::cluster_yaml(made, std::string("measured ") + date + ", trainerd " + core::version());
  if (args.out.empty()) print(text);
  else write_file("--out", args.out, text);
  return kExitDone;
}

}  // namespace trainerd::apps
