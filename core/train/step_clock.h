#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/train/step_trace.h"
#include "io/records/records.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Measures which ledger parts the compute stream's time belongs to. Events mark each change of part on the
/// stream. They are read after the step, possibly when the next one has begun. Between steps nothing is
/// marked, though an evaluation runs the same code.
class StepClock {
 public:
  using Part = base::LedgerPart;
  /// Maximum number of steps begun and not yet read.
  static constexpr int kMaxSteps = 2;

  /// When the issue of an operation is marked. An operation that only puts work on another stream does not
  /// stall the compute stream: its marks would cost time and show nothing, so they are made for traces only.
  enum class IssueMarks : std::uint8_t { always, traced };

  explicit StepClock(kernels::Backend& backend, IssueMarks issue_marks = IssueMarks::always)
      : backend_(backend), issue_marks_(issue_marks) {}
  void start(kernels::Stream& stream);
  /// From here on the stream's time belongs to `part`.
  void enter(kernels::Stream& stream, Part part);
  /// From here until `resume` the time belongs to `part`, then to the previous part again. Stalls do not
  /// nest.
  void stall(kernels::Stream& stream, Part part, const parallel::CommCall& call);
  /// The same while an operation is issued, if issues are marked.
  void issue(kernels::Stream& stream, Part part, const parallel::CommCall& call);
  void resume(kernels::Stream& stream);
  /// The step ends at this point of the stream.
  void end(kernels::Stream& stream);

  /// Number of steps that have ended and were not read.
  int unread() const { return ended_; }
  /// Event at the end of the oldest of them.
  const kernels::Event& over() const;
  /// Waits for that event and returns the sum of each part.
  base::TimeLedger read();

  /// From the next step on: whether to mark actions too and keep a `trace`.
  void keep_trace(bool on) { tracing_ = on; }
  /// The stream begins an action of the schedule; null: the last one has ended.
  void act(kernels::Stream& stream, const parallel::Action* action);
  /// The slices of the step read last, in order, by the clock of base::monotonic_seconds. They add up to its
  /// ledger. With a device that runs asynchronously, their times are right only if it was idle at the step's
  /// begin.
  const std::vector<io::TraceSlice>& trace() const { return trace_; }

 private:
  struct Mark {
    std::unique_ptr<kernels::Event> event;
    Part part = Part::other;  ///< part of the time after the mark
    StreamWork work;          ///< work after the mark
  };
  struct Lap {
    std::vector<Mark> marks;  // reused in every step
    std::size_t used = 0;
    bool traced = false;
    double started_at = 0;
  };
  void mark(kernels::Stream& stream, Part part);
  Part current() const { return running_->marks[running_->used - 1].part; }

  kernels::Backend& backend_;
  IssueMarks issue_marks_;
  std::array<Lap, kMaxSteps> laps_;
  int oldest_ = 0, ended_ = 0;   // laps to read: `ended_` laps from `oldest_` on, cyclically
  Lap* running_ = nullptr;       // of the step being marked; null between steps
  std::optional<Part> stalled_;  // the part that a stall interrupts
  bool unmarked_issue_ = false;  // an operation is being issued without marks
  StreamWork work_;
  bool tracing_ = false;
  std::vector<io::TraceSlice> trace_;
};

}  // namespace trainerd::core::train
