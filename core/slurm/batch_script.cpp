#include "core/slurm/batch_script.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/slurm/sbatch_text.h"
#include "core/spec/spec.h"
#include "io/text/shell.h"
#include "kernels/base/error.h"
#include "parallel/layout/grid.h"

namespace trainerd::core::slurm {
namespace {

using io::shell_word;
using Options = std::vector<SbatchOption>;

constexpr std::string_view kComment = "#SBATCH --";
// Start of trainerd.sbatch's actions; the lines before are its options.
constexpr std::string_view kBegin = "\nset -euo pipefail\n";
constexpr std::string_view kEndOfJob = "END_OF_JOB";

struct StatedOption {
  std::string_view name, instead;
};
constexpr auto kStated = std::to_array<StatedOption>({
    {"nodes", "set cluster.nodes, or give --nodes before the `--`"},
    {"ntasks", "each node has one agent"},
    {"ntasks-per-node", "each node has one agent"},
    {"exclusive", "give --share before the `--` for a part of each node"},
    {"cpus-per-task", "set threads, the CPU threads per rank, and give --share before the `--`"},
    {"requeue", "give --requeues before the `--`"},
    {"no-requeue", "give --requeues 0 before the `--`"},
    {"signal", "give --save-before before the `--`"},
    {"output", "it goes into the output directory"},
    {"open-mode", "a restart must not remove the output of the start before"},
    {"chdir", "go to the directory, and run `trainerd submit` there"},
    {"array", "`trainerd submit` is for one job"},
    {"wrap", "the script is made from the job"},
    {"parsable", "the number of the job is printed anyway"},
    {"test-only", "give --test-only before the `--`"},
});

SbatchOption parse_option(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {text, ""};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void put(Options& options, SbatchOption option) {
  const auto same = [&](const SbatchOption& o) { return o.name == option.name; };
  const auto at = std::find_if(options.begin(), options.end(), same);
  if (at == options.end()) options.push_back(std::move(option));
  else *at = std::move(option);
}

void drop(Options& options, const std::string& name) {
  std::erase_if(options, [&](const SbatchOption& o) { return o.name == name; });
}

/// The options of trainerd.sbatch itself.
Options own_options() {
  Options options;
  std::istringstream lines{std::string(sbatch_text())};
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kComment)) options.push_back(parse_option(line.substr(kComment.size())));
  return options;
}

/// The actions of trainerd.sbatch, which need its arguments to be set.
std::string_view actions() {
  const std::string_view text = sbatch_text();
  const std::size_t begin = text.find(kBegin);
  base::check(begin != std::string_view::npos, "trainerd.sbatch begins with its options");
  return text.substr(begin + kBegin.size());
}

/// Escapes a file name for sbatch, where '%' begins a pattern.
std::string no_pattern(const std::string& path) {
  std::string text;
  for (const char c : path) text += c == '%' ? std::string("%%") : std::string(1, c);
  return text;
}

Options options_of(const BatchScript& script, const std::string& log_file) {
  Options options = own_options();
  const SlurmResources& r = script.resources;
  put(options, {"job-name", script.name});
  put(options, {"nodes", std::to_string(r.nodes)});
  if (r.share == NodeShare::part) {
    drop(options, "exclusive"), drop(options, "mem");
    put(options, {"cpus-per-task", std::to_string(r.cpus)});
  }
  if (r.gpus > 0) put(options, {"gpus-per-node", std::to_string(r.gpus)});
  if (script.max_requeues == 0) drop(options, "requeue"), put(options, {"no-requeue", ""});
  put(options, {"chdir", script.directory});
  put(options, {"output", no_pattern(script.log_directory) + "/" + log_file});
  for (const SbatchOption& option : script.options) put(options, option);
  // For a Slurm that does not know its GPUs.
  std::erase_if(options, [](const SbatchOption& o) { return o.name == "gpus-per-node" && o.value == "0"; });
  return options;
}

void add_notes(std::string& text, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    std::istringstream lines(note);
    for (std::string line; std::getline(lines, line);) text += line.empty() ? "#\n" : "# " + line + "\n";
  }
}

/// Sets the default of a trainerd.sbatch variable, which the environment overrides.
std::string default_of(const std::string& name, const std::string& value) {
  return "[ -n \"${" + name + ":-}\" ] || " + name + "=" + shell_word(value) + "\n";
}

std::string make_script(const BatchScript& script, const Options& options, const std::string& arguments) {
  std::string text = "#!/usr/bin/env bash\n";
  add_notes(text, script.notes);
  for (const SbatchOption& o : options)
    text += std::string(kComment) + o.name + (o.value.empty() ? "" : "=" + shell_word(o.value)) + "\n";
  text += kBegin.substr(1);
  text += "\n" + default_of("TRAINERD", script.executable);
  if (script.max_requeues >= 0)
    text += default_of("TRAINERD_MAX_REQUEUES", std::to_string(script.max_requeues));
  text += arguments;
  for (const std::string& option : script.run_options) text += " " + shell_word(option);
  text += "\n\n# From here on deploy/slurm/trainerd.sbatch.\n";
  return text.append(actions());
}

}  // namespace

SlurmResources slurm_resources(const job::JobSpec& job, const parallel::Topology& topology, NodeShare share) {
  const std::int64_t nodes = job.cluster.nodes,
                     ranks = (parallel::make_grids(job.parallel).dense.ranks() + nodes - 1) / nodes;
  SlurmResources r{.nodes = nodes, .share = share};
  if (topology.device.kind == kernels::DeviceKind::cuda)
    r.gpus = (ranks + topology.ranks_per_device - 1) / topology.ranks_per_device;
  if (share == NodeShare::whole) return r;
  if (job.threads == 0)
    throw base::spec_error(
        "threads: 0 takes all cores of a node, and the job is to have a part of it: set threads, the CPU "
        "threads per rank");
  r.cpus = ranks * job.threads;
  return r;
}

std::vector<SbatchOption> parse_sbatch_options(const std::vector<std::string>& words) {
  Options options;
  for (const std::string& word : words) {
    const std::string name = word.starts_with("--") ? parse_option(word.substr(2)).name : "";
    if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos)
      throw base::spec_error("'" + word +
                             "' is no option of sbatch in the form --name=value or --name; values stand in "
                             "the same word");
    for (const StatedOption& stated : kStated)
      if (name == stated.name)
        throw base::spec_error("--" + name +
                               " is stated by the script itself: " + std::string(stated.instead));
    if (word.find_first_of("\n\r") != std::string::npos)
      throw base::spec_error("--" + name + ": a value has one line");
    put(options, parse_option(word.substr(2)));
  }
  return options;
}

std::string batch_script(const BatchScript& script, const job::JobSpec& job) {
  base::check(script.resources.nodes == job.cluster.nodes, "a script asks for the nodes of its job");
  const std::string yaml = spec::to_yaml(job);
  base::check(yaml.find("\n" + std::string(kEndOfJob) + "\n") == std::string::npos,
              "no line of a job ends it in the script");
  const std::string arguments = "resolved=" + shell_word(script.log_directory) +
                                "/job-$SLURM_JOB_ID.yaml\n"
                                "cat >\"$resolved.partial\" <<'" +
                                std::string(kEndOfJob) + "'\n" + yaml + std::string(kEndOfJob) +
                                "\nmv \"$resolved.partial\" \"$resolved\"\nset -- \"$resolved\"";
  return make_script(script, options_of(script, "%j.out"), arguments);
}

std::string array_script(const BatchScript& script, const std::vector<std::string>& jobs,
                         std::int64_t at_once) {
  if (jobs.empty()) throw base::spec_error("an array needs at least one job");
  Options options = options_of(script, "%A_%a.out");
  put(options, {"array", "0-" + std::to_string(jobs.size() - 1) +
                             (at_once > 0 ? "%" + std::to_string(at_once) : std::string())});
  std::string arguments = "jobs=(\n";
  for (const std::string& job : jobs) arguments += "  " + shell_word(job) + "\n";
  return make_script(script, options, arguments + ")\nset -- \"${jobs[$SLURM_ARRAY_TASK_ID]}\"");
}

}  // namespace trainerd::core::slurm
