#include "core/sweep/slurm_runner.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/run/stop/early_stop.h"
#include "core/slurm/commands.h"
#include "core/spec/machines.h"
#include "core/sweep/table.h"
#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::sweep {
namespace {

namespace fs = std::filesystem;

// Maximum time to wait for Slurm's answers.
constexpr double kPatienceSeconds = 600;

/// True for the state of a Slurm job that is not over.
bool is_live(const std::string& state) {
  static const std::set<std::string> kOver = {"COMPLETED",     "FAILED",    "CANCELLED",
                                              "TIMEOUT",       "NODE_FAIL", "PREEMPTED",
                                              "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"};
  return !kOver.contains(state);
}

std::string absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

}  // namespace

SlurmRunner::SlurmRunner(const Sweep& sweep, Options options)
    : sweep_(sweep), options_(std::move(options)), sbatch_(slurm::parse_sbatch_options(sweep.sbatch)) {}

void SlurmRunner::await_earlier(const std::vector<std::size_t>&) {
  // Slurm knows each job's script, even if the sweep was killed before it knew the job's number.
  bool told = false;
  for (auto arrays = slurm::slurm_jobs_of(script_file()); !arrays.empty();
       arrays = slurm::slurm_jobs_of(script_file())) {
    if (!std::exchange(told, true))
      options_.say("Slurm still runs job " + arrays.back() + " of an earlier sweep: waiting for it");
    look_again(arrays);
  }
}

void SlurmRunner::run(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
                      const OnEnd& on_end) {
  // One script requests one kind of resources.
  std::vector<std::pair<slurm::SlurmResources, std::vector<std::size_t>>> kinds;
  for (const std::size_t job : jobs) {
    const job::JobSpec& spec = sweep_.jobs[job].spec;
    const slurm::SlurmResources resources = slurm::slurm_resources(
        spec, spec::job_topology(spec, spec::Absent::assumed), slurm::NodeShare::whole);
    const auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == resources; });
    if (kind == kinds.end()) kinds.emplace_back(resources, std::vector{job});
    else kind->second.push_back(job);
  }
  for (const auto& [resources, of_kind] : kinds)
    if (!stop_) run_array(resources, of_kind, stop_after, on_end);
}

void SlurmRunner::run_array(const slurm::SlurmResources& resources, const std::vector<std::size_t>& jobs,
                            std::optional<std::int64_t> stop_after, const OnEnd& on_end) {
  const std::string directory = absolute(sweep_.output + "/slurm");
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw io::output_error(directory, "make", error.value());
  slurm::BatchScript script{.name = sweep_.name,
                            .resources = resources,
                            .directory = fs::current_path().string(),
                            .log_directory = directory,
                            .executable = options_.executable,
                            .notes = {"Jobs of the sweep " + sweep_.name},
                            .run_options = {},
                            .options = sbatch_};
  if (stop_after) script.run_options = {"--stop-after", std::to_string(*stop_after)};
  std::vector<std::string> files;
  for (const std::size_t job : jobs) files.push_back(absolute(sweep_.job_file(sweep_.jobs[job])));
  const std::string path = script_file();
  write_whole(path, slurm::array_script(script, files, sweep_.at_once));
  const std::string array = slurm::submit_script(path);
  options_.say("submitted to Slurm as job " + array + ": " + std::to_string(jobs.size()) + " tasks, " +
               std::to_string(sweep_.at_once) + " at a time; their output is in " + directory);
  std::map<std::string, std::size_t> left;  // job by task
  for (std::size_t i = 0; i < jobs.size(); ++i) left[array + "_" + std::to_string(i)] = jobs[i];
  std::set<std::string> started;
  while (!left.empty()) {
    const auto states = states_of(array);
    for (auto task = left.begin(); states && task != left.end();) {
      const auto state = states->find(task->first);
      if (state != states->end() && is_live(state->second)) {
        if (state->second == "RUNNING" && started.insert(task->first).second)
          options_.say(sweep_.jobs[task->second].name + " started" + set_text(sweep_.jobs[task->second]));
        ++task;
        continue;
      }
      const std::size_t job = task->second;
      task = left.erase(task);
      on_end(job, std::nullopt);
    }
    if (!left.empty()) look_again({array});
  }
}

/// Nothing while Slurm does not answer, as its controller may be restarting. Throws if this lasts too long.
std::optional<std::map<std::string, std::string>> SlurmRunner::states_of(const std::string& array) {
  try {
    auto states = slurm::slurm_states(array);
    silent_since_.reset();
    return states;
  } catch (const base::SpecError& error) {
    const double now = base::monotonic_seconds();
    if (!silent_since_) options_.say(first_line(error.what()) + "; asking again");
    silent_since_ = silent_since_.value_or(now);
    if (now - *silent_since_ > kPatienceSeconds) throw;
    return std::nullopt;
  }
}

std::string SlurmRunner::script_file() const { return absolute(sweep_.output + "/slurm/array.sbatch"); }

/// Waits before the next poll. A stop request cancels the arrays, so their jobs save.
void SlurmRunner::look_again(const std::vector<std::string>& arrays) {
  pollfd fd{options_.signal_fd, POLLIN, 0};
  if (::poll(&fd, 1, static_cast<int>(1000 * options_.look_again_seconds)) <= 0) return;
  const int signal = run::read_signal(options_.signal_fd);
  if (signal == 0) return;
  if (signals_.on_signal(signal, base::monotonic_seconds()) == run::StopSignals::Meaning::same_request)
    return;
  stop_ = run::stop_request(signal);
  options_.say(run::signal_name(signal) + ": Slurm ends the jobs, which save");
  slurm::cancel_slurm_jobs(arrays);
}

}  // namespace trainerd::core::sweep
