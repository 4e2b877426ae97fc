#include "apps/job_file.h"

#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "apps/nodes.h"
#include "apps/output.h"
#include "core/plan/calibrate/calibrate.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "io/checkpoint/checkpoint.h"

namespace trainerd::apps {
namespace {

/// As parallel::describe writes a layout: "tp1 cp1 ep1 dp2 pp1 ...".
std::optional<std::int64_t> dp_of(const std::string& layout) {
  const std::size_t at = layout.find(" dp");
  if (at == std::string::npos) return std::nullopt;
  std::int64_t dp = 0;
  const char* begin = layout.data() + at + 3;
  const auto [end, error] = std::from_chars(begin, layout.data() + layout.size(), dp);
  return error == std::errc() && end != begin && dp >= 1 ? std::optional(dp) : std::nullopt;
}

std::optional<std::int64_t> trained_dp(const std::string& output) {
  const std::filesystem::path checkpoints = std::filesystem::path(output) / "checkpoints";
  std::error_code ignored;
  if (!std::filesystem::is_directory(checkpoints, ignored)) return std::nullopt;
  const std::vector<io::StoredCheckpoint> stored = io::CheckpointStore(checkpoints.string(), 1).list();
  if (stored.empty()) return std::nullopt;
  const io::CheckpointReader newest(stored.front().path);
  const auto& environment = newest.manifest().state.environment;
  const auto layout = environment.find("layout");
  return layout == environment.end() ? std::nullopt : dp_of(layout->second);
}

}  // namespace

void say(const std::string& line) { print_error("trainerd: " + line); }

core::spec::Machine this_machine_for_slurm(const base::SpecError& error) {
  say("device: auto and dp: auto are by this machine, since Slurm does not say what its nodes have: " +
      std::string(error.what()));
  return core::spec::this_machine();
}

core::spec::Surroundings surroundings_here() {
  return {.environment = process_environment,
          .machine = [] { return core::spec::this_machine(); },
          .trained_dp = trained_dp,
          .remark = say};
}

core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides,
                            core::spec::Surroundings around) {
  return core::spec::load_job(path, overrides, std::move(around));
}

core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides) {
  return read_job(path, overrides, surroundings_here());
}

parallel::Topology machines_of(const core::job::JobSpec& job, const std::string& calibrate_seconds) {
  if (calibrate_seconds.empty()) return core::spec::job_topology(job);
  say("measuring this machine for about " + calibrate_seconds +
      " s; `trainerd calibrate --out FILE` keeps what it finds");
  return core::plan::calibrated_topology(job, std::stod(calibrate_seconds));
}

}  // namespace trainerd::apps
