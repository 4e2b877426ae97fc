#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/job/job.h"
#include "core/run/coordinator/lead_mark.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// A directory that was renamed, and is renamed back in place of a new one unless that is in use.
class MovedAside {
 public:
  MovedAside() = default;
  MovedAside(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  MovedAside(MovedAside&& other) noexcept
      : from_(std::move(other.from_)), to_(std::move(other.to_)), stays_(std::exchange(other.stays_, true)) {}
  MovedAside& operator=(MovedAside&& other) noexcept;
  ~MovedAside() { put_back(); }

  const std::string& to() const { return to_; }
  void stay() { stays_ = true; }

 private:
  /// Removes what is at the old place. A failure is logged.
  void put_back() noexcept;
  std::string from_, to_;
  bool stays_ = false;
};

/// A run's output directory, locked by one agent at a time. Holds job.yaml, run.json, starts.jsonl,
/// gemm-algorithms.txt, steps.jsonl, samples.jsonl, events.jsonl, tensorboard/, mlflow.json, report.html,
/// run.log, traces/, hangs/, checkpoints/ and, with loss.dpo, reference.safetensors; while running also
/// metrics.json, and .discovery-node-0 if the job has a discovery directory.
class OutputDirectory {
 public:
  /// Treatment of an earlier run's output.
  enum class Earlier { kept, moved_aside };
  /// Creates the directory and locks it; `path` may be a file:// URI. An output to be moved aside is first
  /// renamed to `<path>.old-YYYYmmdd-HHMMSS` (UTC), and back again if the object ends without `begin`. Throws
  /// SpecError if it cannot be created or written, or another run holds it; CheckpointError if the disk is
  /// full. An agent that leads through a coordinator marks it with `lead` and takes it over from a holder
  /// with an older lead: that agent may be frozen with its lock and logs open. The lock and logs then become
  /// new files, so that its late writes have no effect. Throws LeadLost if the holder has a newer lead.
  explicit OutputDirectory(const std::string& path, Earlier earlier = Earlier::kept,
                           const std::optional<LeadMark>& lead = {});
  /// For a node that does not lead: the directory that the leader has marked. Throws SpecError if the mark
  /// does not appear within `seconds`, because the nodes do not share the directory; LeadLost if a later
  /// leader of the run has marked it.
  static OutputDirectory marked(const std::string& path, const std::string& run, double seconds);
  /// Writes the run's name into the lock file, for the other nodes.
  void mark(const std::string& run) const;

  /// Throws LeadLost if the mark is not `lead`: another agent has taken the directory over.
  void require_mark(const LeadMark& lead) const;

  /// Writes job.yaml. Call it only when the run is certain to begin: a refused run must not replace the job
  /// that made the existing files. Throws SpecError.
  void write_job(const job::JobSpec& job) const;
  /// Content of an earlier run's job.yaml; empty if there is none.
  std::string written_job() const;
  /// The GEMM algorithms that an earlier run here chose; empty if none did. `write` throws SpecError.
  std::string gemm_algorithms() const;
  void write_gemm_algorithms(const std::string& text) const;

  /// Takes the lock again if its file is not at its path any more, and returns what was found; else empty.
  /// Throws SpecError if another run holds it by now.
  std::string keep_lock();

  /// New path of an earlier run's output; empty if it was not moved.
  const std::string& moved_to() const { return earlier_.to(); }
  /// The run begins: an earlier run's output stays where it was moved.
  void begin() { earlier_.stay(); }
  /// The last step that an earlier run here recorded or saved a checkpoint of; none without such records.
  /// Throws SpecError if they cannot be read.
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
  /// True if report.html exists, is no older than steps.jsonl, and is of a run that has ended.
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
  std::string path_;
  base::UniqueFd lock_;
  MovedAside earlier_;  ///< put back before the lock ends
};

}  // namespace trainerd::core::run
