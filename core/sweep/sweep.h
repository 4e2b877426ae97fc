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
  std::string name;  ///< "lr-003": of the run too
  std::vector<SetKey> set;
  job::JobSpec spec;               ///< resolved; means nothing where the job is refused by its keys
  std::string refused = {};        ///< why it is not run; empty: it is
  bool automatic_threads = false;  ///< spec.threads are this machine's cores divided
  std::int64_t node_bytes = 0;     ///< planned, of a node
  double step_seconds = 0;         ///< planned; 0: the machine's rates are not known
};

/// A sweep, as its file says it.
struct Sweep {
  std::string name;
  std::string output;  ///< directory
  std::int64_t at_once = 1;
  SweepPlace where = SweepPlace::local;
  std::optional<Halving> halving;
  std::vector<std::string> sbatch;  ///< options of sbatch for each job: "--time=2:00:00"
  std::vector<SweepJob> jobs;

  std::string job_file(const SweepJob& job) const { return output + "/jobs/" + job.name + ".yaml"; }
  std::string job_log(const SweepJob& job) const { return output + "/jobs/" + job.name + ".log"; }
  std::string results() const { return output + "/results.jsonl"; }
  std::string page() const { return output + "/results.html"; }
};

/// What goes over the file from the command line.
struct SweepArguments {
  std::vector<std::string> overrides;                 ///< "a.b=value", of the base
  std::string output;                                 ///< over `output`; empty: the file's
  std::function<spec::Machine()> slurm_machine = {};  ///< what a node of Slurm's has, for `where: slurm`
};

/// Reads a sweep's file and its base, and makes the jobs. Throws SpecError with every problem of the sweep's
/// own keys, of each value and of the base. A job whose keys do not go together is refused in its
/// `refused`; where all are, the problems of the first are thrown. `around` is this process's; its directory
/// is not used.
Sweep read_sweep(const std::string& path, const SweepArguments& arguments, const spec::Surroundings& around);

/// Writes a file of the sweep: the whole or nothing. Throws the error of an output that cannot be written.
void write_whole(const std::string& path, const std::string& text);

}  // namespace trainerd::core::sweep
