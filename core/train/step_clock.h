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

/// Where the compute stream's time goes: marks on the stream at each change of part, read when the step is
/// over, which may be after the next was begun. Between steps (an evaluation runs the same code) nothing is
/// marked.
class StepClock {
 public:
  using Part = base::LedgerPart;
  /// Steps begun and not yet read.
  static constexpr int kMaxSteps = 2;

  /// When the issue of an operation is marked. One that only puts work on another stream does not stall the
  /// compute stream: its marks cost time and read as nothing, so that a trace alone has them.
  enum class IssueMarks : std::uint8_t { always, traced };

  explicit StepClock(kernels::Backend& backend, IssueMarks issue_marks = IssueMarks::always)
      : backend_(backend), issue_marks_(issue_marks) {}
  void start(kernels::Stream& stream);
  /// From here on the stream's time belongs to `part`.
  void enter(kernels::Stream& stream, Part part);
  /// Until `resume` it belongs to `part`, and then again to the part before. Stalls do not nest.
  void stall(kernels::Stream& stream, Part part, const parallel::CommCall& call);
  /// The same while an operation is issued, where that is marked.
  void issue(kernels::Stream& stream, Part part, const parallel::CommCall& call);
  void resume(kernels::Stream& stream);
  /// The step that was started is over when the stream is here.
  void end(kernels::Stream& stream);

  /// Steps ended and not yet read.
  int unread() const { return ended_; }
  /// When the oldest of them is over.
  const kernels::Event& over() const;
  /// Waits for it and adds up its parts.
  base::TimeLedger read();

  /// From the next step on, whether actions are marked too and `trace` is kept.
  void keep_trace(bool on) { tracing_ = on; }
  /// The stream comes to an action of the schedule; null: to the end of the last one.
  void act(kernels::Stream& stream, const parallel::Action* action);
  /// The stretches, in order, of the step read last, by the clock of base::monotonic_seconds. They add up to
  /// its ledger. Where the device runs behind the host they are right when it had nothing left to do as the
  /// step began.
  const std::vector<io::TraceSlice>& trace() const { return trace_; }

 private:
  struct Mark {
    std::unique_ptr<kernels::Event> event;
    Part part = Part::other;  ///< of the time after the mark
    StreamWork work;          ///< likewise
  };
  struct Lap {
    std::vector<Mark> marks;  // kept from step to step: events are made once
    std::size_t used = 0;
    bool traced = false;
    double started_at = 0;
  };
  void mark(kernels::Stream& stream, Part part);
  Part current() const { return running_->marks[running_->used - 1].part; }

  kernels::Backend& backend_;
  IssueMarks issue_marks_;
  std::array<Lap, kMaxSteps> laps_;
  int oldest_ = 0, ended_ = 0;   // laps to be read: from `oldest_` on, around
  Lap* running_ = nullptr;       // of the step that is being marked; null between steps
  std::optional<Part> stalled_;  // the part that a stall interrupts
  bool unmarked_issue_ = false;  // an operation is being issued without marks
  StreamWork work_;
  bool tracing_ = false;
  std::vector<io::TraceSlice> trace_;
};

}  // namespace trainerd::core::train
