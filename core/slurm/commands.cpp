#include "core/slurm/commands.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/slurm/program.h"
#include "core/slurm/slurm_text.h"
#include "kernels/base/error.h"

namespace trainerd::core::slurm {
namespace {

/// A command's output, in one line.
std::string words_of(const ProgramOutcome& outcome) {
  std::istringstream lines(outcome.error + "\n" + outcome.output);
  std::string text, line;
  while (std::getline(lines, line)) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (!line.empty()) text += (text.empty() ? "" : "; ") + line;
  }
  return text.empty() ? "status " + std::to_string(outcome.status) : text;
}

ProgramOutcome run_slurm(const std::vector<std::string>& words) {
  if (auto outcome = run_program(words)) return *std::move(outcome);
  throw base::spec_error("there is no " + words.front() +
                         " on the PATH: go to a host of the Slurm cluster, or put Slurm's commands there");
}

/// Runs a command that must succeed.
ProgramOutcome run_well(const std::vector<std::string>& words, const std::string& what) {
  ProgramOutcome outcome = run_slurm(words);
  if (outcome.status != 0) throw base::spec_error(what + ": " + words_of(outcome));
  return outcome;
}

}  // namespace

std::string submit_script(const std::string& script) {
  const ProgramOutcome outcome = run_well({"sbatch", "--parsable", script}, "sbatch does not take the job");
  const std::string number = job_number(outcome.output);
  if (number.empty()) throw base::spec_error("sbatch gave no job number: " + words_of(outcome));
  return number;
}

std::string test_script(const std::string& script) {
  const std::string text =
      words_of(run_well({"sbatch", "--test-only", script}, "sbatch would not take the job"));
  const std::string who = "sbatch: ";
  return text.starts_with(who) ? text.substr(who.size()) : text;
}

void cancel_slurm_jobs(const std::vector<std::string>& jobs) {
  if (jobs.empty()) return;
  std::vector<std::string> words{"scancel"};
  words.insert(words.end(), jobs.begin(), jobs.end());
  const ProgramOutcome outcome = run_slurm(words);
  if (outcome.status == 0) return;
  std::istringstream lines(outcome.error);
  for (std::string line; std::getline(lines, line);)
    if (line.find("already completing or completed") == std::string::npos &&
        line.find("Invalid job id") == std::string::npos)
      throw base::spec_error("scancel fails: " + words_of(outcome));
}

std::map<std::string, std::string> slurm_states(const std::string& job) {
  const ProgramOutcome outcome =
      run_slurm({"squeue", "--noheader", "--array", "--states=all", "--jobs=" + job, "--format=%i %T"});
  if (outcome.status == 0) return read_job_states(outcome.output);
  if (outcome.error.find("Invalid job id") != std::string::npos) return {};
  throw base::spec_error("squeue fails: " + words_of(outcome));
}

std::vector<std::string> slurm_jobs_of(const std::string& script) {
  // %F: number of a job or array; %o: script.
  const ProgramOutcome outcome = run_well({"squeue", "--noheader", "--format=%F %o"}, "squeue fails");
  std::vector<std::string> jobs;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    while (line.ends_with(' ')) line.pop_back();
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.substr(line.find_first_not_of(' ', space)) != script) continue;
    const std::string job = line.substr(0, space);
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(job);
  }
  return jobs;
}

SlurmNodes slurm_nodes(const std::string& partition) {
  std::vector<std::string> words{"sinfo", "--noheader", "--Node", "--format=%c %G"};
  if (!partition.empty()) words.push_back("--partition=" + partition);
  const SlurmNodes nodes = read_nodes(run_well(words, "sinfo fails").output);
  if (nodes.cpus == 0)
    throw base::spec_error("Slurm has no nodes" +
                           (partition.empty() ? std::string() : " in partition " + partition));
  return nodes;
}

std::optional<std::string> slurm_node_address(const std::string& node) {
  const auto outcome = run_program({"scontrol", "--oneliner", "show", "node", node});
  if (!outcome || outcome->status != 0) return std::nullopt;
  return read_node_address(outcome->output);
}

}  // namespace trainerd::core::slurm
