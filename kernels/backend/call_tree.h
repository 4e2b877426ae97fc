#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/backend/backend.h"

namespace trainerd::kernels {

/// One call of an operator, stored to be compared with later calls and to be made again.
class Call {
 public:
  Call(Operator op, Arena::Mark scratch) : op_(op), scratch_(scratch) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Operator op() const { return op_; }
  /// Top of the stream's scratch at the call, where the operator's own scratch begins.
  Arena::Mark scratch() const { return scratch_; }
  virtual void make(Backend&, Stream&) const = 0;

 private:
  Operator op_;
  Arena::Mark scratch_;
};

/// Arguments that are only values. Arguments that refer to host memory have no equality, because that memory
/// may be reused or changed before the call is made again.
template <class Args>
concept Comparable = std::equality_comparable<Args>;

template <Comparable Args>
class CallOf final : public Call {
 public:
  using Run = void (*)(Backend&, Stream&, const Args&);
  CallOf(Operator op, Arena::Mark scratch, const Args& args, Run run)
      : Call(op, scratch), args_(args), run_(run) {}
  void make(Backend& backend, Stream& stream) const override { run_(backend, stream, args_); }
  /// Arguments have one type per operator, so equal operators make the cast valid.
  static bool same(const Call& call, Operator op, Arena::Mark scratch, const Args& args) {
    return call.op() == op && call.scratch() == scratch && static_cast<const CallOf&>(call).args_ == args;
  }

 private:
  Args args_;
  Run run_;
};

// Copies and fills, as arguments.
struct CopyCall {
  Tensor from, to;
  bool operator==(const CopyCall&) const = default;
};
struct FillCall {
  Tensor x;
  bool operator==(const FillCall&) const = default;
};

/// A list of calls that has come at least once. It becomes a graph when it comes again.
struct CallList {
  std::int64_t times = 0;
  std::unique_ptr<DeviceGraph> graph;
  BackendCounters counted;  ///< counters of one run of the graph's calls
};

/// Prefix tree of lists of calls: the path from the root to a node with a `list` is one list.
struct CallNode {
  std::unique_ptr<const Call> call;  ///< null at the root
  std::vector<std::unique_ptr<CallNode>> next;
  std::optional<CallList> list;
};

}  // namespace trainerd::kernels
