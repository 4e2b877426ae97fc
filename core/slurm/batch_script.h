#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

// Batch scripts for sbatch. deploy/slurm/trainerd.sbatch, which this library contains, handles preemption,
// time limits and lost nodes. Scripts made here put a head (resources, the job or jobs) before that file.

namespace trainerd::core::slurm {

/// Whether a job has whole nodes or a part of them.
enum class NodeShare : std::uint8_t { whole, part };

/// Resources of each job of a script.
struct SlurmResources {
  std::int64_t nodes = 1;
  std::int64_t gpus = 0;  ///< per node; 0: none requested
  std::int64_t cpus = 0;  ///< CPU threads per node, for NodeShare::part; memory is then Slurm's default
  NodeShare share = NodeShare::whole;

  bool operator==(const SlurmResources&) const = default;
};

/// Resources of one job on the machines `topology` (core::spec::job_topology). Throws SpecError for
/// NodeShare::part if `threads` is 0, which means all cores of a node.
SlurmResources slurm_resources(const job::JobSpec& job, const parallel::Topology& topology, NodeShare share);

/// An sbatch option: {"time", "12:00:00"} is `--time=12:00:00`, {"contiguous", ""} is `--contiguous`.
struct SbatchOption {
  std::string name, value;
};
/// Parses words such as "--time=12:00:00". Throws SpecError for words of another form, and for options that
/// the script sets itself or that change its kind (nodes, array, wrap, ...).
std::vector<SbatchOption> parse_sbatch_options(const std::vector<std::string>& words);

/// Common parts of scripts for one job and for an array. Paths are absolute.
struct BatchScript {
  std::string name;          ///< name of the Slurm job
  SlurmResources resources;  ///< per job of an array
  std::string directory;     ///< working directory, base of the jobs' relative paths
  /// Directory for the output: JOB.out, or ARRAY_TASK.out for an array. Slurm does not create it.
  std::string log_directory;
  std::string executable;                     ///< path of trainerd; the variable TRAINERD overrides it
  std::vector<std::string> notes = {};        ///< comments at the top
  std::vector<std::string> run_options = {};  ///< options of `trainerd run`
  std::vector<SbatchOption> options = {};     ///< override the script's own
  std::int64_t max_requeues = -1;             ///< 0: no requeue; -1: default of trainerd.sbatch
};

/// The script of one job. It contains the resolved job and, when it starts, writes it to
/// `log_directory`/job-JOB.yaml for the agents.
std::string batch_script(const BatchScript& script, const job::JobSpec& job);

/// The script of an array: task i runs the job of the file `jobs[i]`, at most `at_once` of them at a time (0:
/// Slurm's choice). All have the script's resources; a job for another number of nodes is refused at its
/// start. Tasks are preempted, requeued and cancelled individually (`JOB_i`). Slurm allows MaxArraySize
/// tasks, 1001 by default. Throws SpecError if there are no jobs.
std::string array_script(const BatchScript& script, const std::vector<std::string>& jobs,
                         std::int64_t at_once);

}  // namespace trainerd::core::slurm
