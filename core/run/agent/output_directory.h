#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/run/coordinator/lead_mark.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// A run's directory, held by one agent at a time: job.yaml, run.json, starts.jsonl, gemm-algorithms.txt,
/// steps.jsonl, samples.jsonl, events.jsonl, tensorboard/, mlflow.json, report.html, run.log, metrics.json
/// while it runs, .discovery-node-0 while a target of it is in the job's discovery directory, traces/,
/// hangs/, checkpoints/, of a job with loss.dpo reference.safetensors.
class OutputDirectory {
 public:
  /// What becomes of an earlier run's output.
  enum class Earlier { kept, moved_aside };
  /// Makes it and locks it; `path` may be a file:// URI. An output that is to be moved aside is renamed to
  /// `<path>.old-YYYYmmdd-HHMMSS` (UTC) first. Throws SpecError: it cannot be made or written, or another run
  /// holds it; CheckpointError: the disk is full. An agent that leads by a coordinator's word marks it with
  /// `lead`, and takes it over from one whose lead is older: that one may be frozen, and hold its lock and
  /// logs open. The lock and the logs are new files then, so that nothing of what it writes later is seen.
  /// Throws LeadLost when an agent whose lead is newer holds it.
  explicit OutputDirectory(const std::string& path, Earlier earlier = Earlier::kept,
                           const std::optional<LeadMark>& lead = {});
  /// Of a node that does not lead: the directory that the leader has marked. Throws SpecError when it does
  /// not see it within `seconds`: the nodes do not share the directory; LeadLost when it is marked by a later
  /// leader of the run.
  static OutputDirectory marked(const std::string& path, const std::string& run, double seconds);
  /// Leaves the run's name for the other nodes.
  void mark(const std::string& run) const;

  /// Throws LeadLost when the directory is not marked with `lead` any more: another agent has taken it over.
  void require_mark(const LeadMark& lead) const;

  /// Writes job.yaml: once the run is sure to begin, so that a refused one leaves the job that made what is
  /// there. Throws SpecError.
  void write_job(const job::JobSpec& job) const;
  /// The job.yaml that an earlier run left; empty: there is none.
  std::string written_job() const;
  /// The GEMM algorithms that a run of this directory chose; empty: none did. `write` throws SpecError.
  std::string gemm_algorithms() const;
  void write_gemm_algorithms(const std::string& text) const;

  /// Where an earlier run's output was moved; empty: nowhere.
  const std::string& moved_to() const { return moved_to_; }
  /// The last step that a run of this directory recorded, or saved a checkpoint of; none: there are no such
  /// records. Throws SpecError when they cannot be read.
  std::optional<std::int64_t> recorded_step() const;
  /// The last step that steps.jsonl and samples.jsonl both hold; 0: there is none. Throws as `recorded_step`.
  std::int64_t last_whole_step() const;
  /// Whether the events of earlier runs are there and none is a checkpoint. Throws as `recorded_step`.
  bool records_no_checkpoint() const;

  const std::string& path() const { return path_; }
  std::string steps() const { return path_ + "/steps.jsonl"; }
  std::string samples() const { return path_ + "/samples.jsonl"; }
  std::string events() const { return path_ + "/events.jsonl"; }
  std::string starts() const { return path_ + "/starts.jsonl"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string mlflow() const { return path_ + "/mlflow.json"; }
  std::string log(std::int64_t node) const {
    return path_ + (node == 0 ? "/run.log" : "/run-node-" + std::to_string(node) + ".log");
  }
  std::string facts() const { return path_ + "/run.json"; }
  std::string report() const { return path_ + "/report.html"; }
  std::string metrics(std::int64_t node) const {
    return path_ + (node == 0 ? "/metrics.json" : "/metrics-node-" + std::to_string(node) + ".json");
  }
  std::string traces() const { return path_ + "/traces"; }
  std::string hangs() const { return path_ + "/hangs"; }
  /// See failure_file.h.
  std::string failures() const { return path_ + "/failures.json"; }
  /// See RunSeries::PassedOver.
  std::string passed_over() const { return path_ + "/passed-over.json"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string reference() const { return path_ + "/reference.safetensors"; }
  /// Whether report.html is there, no older than steps.jsonl, and of a run that ended.
  bool report_is_current() const;

 private:
  std::string gemm_algorithms_file() const { return path_ + "/gemm-algorithms.txt"; }
  void write(const std::string& path, const std::string& text) const;
  struct Unlocked {};
  OutputDirectory(const std::string& path, Unlocked) : path_(path) {}
  void lock(const std::optional<LeadMark>& lead);
  void take_lock_over(const LeadMark& lead);
  void renew_logs() const;
  void move_aside();
  std::string path_, moved_to_;
  base::UniqueFd lock_;
};

}  // namespace trainerd::core::run
