#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

// Batch scripts for sbatch. What a script does when its job is preempted, reaches its time limit or loses a
// node is deploy/slurm/trainerd.sbatch, which this library carries: scripts made here are a head (resources,
// the job or jobs) before that file.

namespace trainerd::core {

/// Whether a job has its nodes to itself.
enum class NodeShare : std::uint8_t { whole, part };

/// What each job of a script gets.
struct SlurmResources {
  std::int64_t nodes = 1;
  std::int64_t gpus = 0;  ///< per node; 0: none is asked for
  std::int64_t cpus = 0;  ///< CPU threads per node, of NodeShare::part; memory is then Slurm's default
  NodeShare share = NodeShare::whole;

  bool operator==(const SlurmResources&) const = default;
};

/// Of one job, whose machines are `topology` (core::job_topology). With NodeShare::part throws SpecError
/// where `threads` is 0, which means all cores of a node.
SlurmResources slurm_resources(const JobSpec& job, const parallel::Topology& topology, NodeShare share);

/// An option of sbatch: {"time", "12:00:00"} is `--time=12:00:00`, {"contiguous", ""} is `--contiguous`.
struct SbatchOption {
  std::string name, value;
};
/// From words such as "--time=12:00:00". Throws SpecError for words of another form, and for options that the
/// script states itself or that make it something else (nodes, array, wrap, ...).
std::vector<SbatchOption> parse_sbatch_options(const std::vector<std::string>& words);

/// What scripts of one job and of an array have in common. Paths are absolute.
struct BatchScript {
  std::string name;          ///< of the Slurm job
  SlurmResources resources;  ///< of one job of an array
  std::string directory;     ///< the working directory, from which relative paths of the jobs are
  /// Takes the output: JOB.out, of an array ARRAY_TASK.out. Slurm does not make it.
  std::string log_directory;
  std::string executable;                     ///< trainerd; the variable TRAINERD goes over it
  std::vector<std::string> notes = {};        ///< comments at the top
  std::vector<std::string> run_options = {};  ///< of `trainerd run`, beside the job
  std::vector<SbatchOption> options = {};     ///< go over the script's own
  std::int64_t max_requeues = -1;             ///< 0: the job is not requeued; -1: as trainerd.sbatch says
};

/// The script of one job. It carries the resolved job, and when it starts writes it to
/// `log_directory`/job-JOB.yaml for the agents.
std::string batch_script(const BatchScript& script, const JobSpec& job);

/// The script of an array: task i runs the job of the file `jobs[i]`, `at_once` of them at a time at most (0:
/// as many as Slurm likes). All have the resources of the script; a job for another number of nodes is
/// refused when it starts. Each task is preempted, requeued and cancelled by itself (`JOB_i`). Slurm allows
/// as many tasks as its MaxArraySize, 1001 by default. Throws SpecError when there are no jobs.
std::string array_script(const BatchScript& script, const std::vector<std::string>& jobs,
                         std::int64_t at_once);

}  // namespace trainerd::core
