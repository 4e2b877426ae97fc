#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "core/sweep/halving.h"
#include "core/sweep/points.h"

namespace trainerd::core::sweep {

enum class SweepPlace : std::uint8_t { local, slurm };

/// A job of a sweep.
struct SweepJob {
  std::string name;  ///< "lr-003"; also the run's name
  std::vector<SetKey> set;
  job::JobSpec spec;               ///< resolved; invalid if the job's keys are refused
  std::string refused = {};        ///< why it does not run; empty: it runs
  bool automatic_threads = false;  ///< spec.threads is a share of this machine's cores
  std::int64_t node_bytes = 0;     ///< planned memory of a node
  double step_seconds = 0;         ///< planned; 0: the machine's rates are unknown
};

/// A sweep, as in its file.
struct Sweep {
  std::string name;
  std::string output;  ///< directory
  std::int64_t at_once = 1;
  SweepPlace where = SweepPlace::local;
  std::optional<Halving> halving;
  std::vector<std::string> sbatch;  ///< sbatch options for each job: "--time=2:00:00"
  std::vector<SweepJob> jobs;

  std::string job_file(const SweepJob& job) const { return output + "/jobs/" + job.name + ".yaml"; }
  std::string job_log(const SweepJob& job) const { return output + "/jobs/" + job.name + ".log"; }
  std::string results() const { return output + "/results.jsonl"; }
  std::string page() const { return output + "/results.html"; }
};

/// Command-line settings that override the file.
struct SweepArguments {
  std::vector<std::string> overrides;                 ///< "a.b=value", applied to the base
  std::string output;                                 ///< replaces `output`; empty: the file's
  std::function<spec::Machine()> slurm_machine = {};  ///< resources of a Slurm node, for `where: slurm`
};

/// Reads a sweep's file and its base, and builds the jobs. Throws SpecError with all problems of the sweep's
/// own keys, of each value and of the base. A job with contradictory keys is refused by its `refused`; if all
/// jobs are, the first one's problems are thrown. `around` is this process's; its directory is not used.
Sweep read_sweep(const std::string& path, const SweepArguments& arguments, const spec::Surroundings& around);

/// Writes a file of the sweep atomically. Throws the error of an output that cannot be written.
void write_whole(const std::string& path, const std::string& text);

}  // namespace trainerd::core::sweep
