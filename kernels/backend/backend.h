#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"
#include "kernels/ops/op_class.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

class Stream;

/// Holds back the calls of a stream, to put them on the device together.
class HeldCalls {
 public:
  /// When this returns, all calls made on the stream are on the device.
  virtual void put_on_device() = 0;

 protected:
  ~HeldCalls() = default;
};

/// Two passes that use a stream in turns.
class StreamTurns {
 public:
  /// Lets the other pass use the stream until it gives way too, or ends.
  virtual void give_way() = 0;

 protected:
  ~StreamTurns() = default;
};

/// An ordered queue of device work with its own scratch stack. The CPU and meta backends run calls
/// immediately. Operators take scratch from the stack and release it before they return, so it is empty
/// between actions.
class Stream {
 public:
  Stream(std::string name, Arena* scratch) : name_(std::move(name)), scratch_(scratch) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::string& name() const { return name_; }
  Arena& scratch() const { return *scratch_; }
  /// From now on operators take their scratch from `scratch`. Returns the previous arena.
  Arena* exchange_scratch(Arena* scratch) { return std::exchange(scratch_, scratch); }

  /// Call this before any use of the stream that bypasses its Backend (NCCL) or waits for it. Code that gets
  /// the device's own handle of a stream must call it first, so that the order of calls is kept.
  void flush() const {
    if (held_by_ != nullptr) held_by_->put_on_device();
  }
  const HeldCalls* held_by() const { return held_by_; }
  void hold_by(HeldCalls* holder) { held_by_ = holder; }

  /// Call this before the stream waits for a message that another pass may hide. Scratch that the caller has
  /// taken stays its own.
  void give_way() const {
    if (turns_ != nullptr) turns_->give_way();
  }
  /// True if two passes use the stream in turns.
  bool shared() const { return turns_ != nullptr; }
  void share_by(StreamTurns* turns) { turns_ = turns; }

 private:
  std::string name_;
  Arena* scratch_;
  HeldCalls* held_by_ = nullptr;
  StreamTurns* turns_ = nullptr;
};

/// A point in the work of a stream.
class Event {
 public:
  virtual ~Event() = default;
};

enum class MemoryKind : std::uint8_t { device, host };

/// Calls that a device captured once and replays as one: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// Identifies a list of calls within a step. Lists are only compared with lists of the same place.
struct ListPlace {
  std::string_view part;  ///< "forward"; points to a constant
  int chunk = 0;          ///< index among the rank's own chunks
  bool of_step = true;    ///< false: of an evaluation

  auto operator<=>(const ListPlace&) const = default;
};
/// Shorter lists do not become graphs: launching a graph takes about as long as one or two kernels.
inline constexpr std::int64_t kMinGraphCalls = 4;
/// Whether graphs pay off, from the times of one step: of the host, to issue the calls one by one, and of the
/// device. Below a quarter the host is ahead of the device almost everywhere.
constexpr bool graphs_pay(double issue_seconds, double device_seconds) {
  return issue_seconds > 0 && issue_seconds >= 0.25 * device_seconds;
}

/// How lists of calls ran: see GraphBackend.
struct GraphUse {
  /// `deciding` only during the first steps.
  enum class State : std::uint8_t { none, deciding, not_worth, used } state = State::none;
  /// The basis of the decision, for one step: host seconds to issue the calls of all lists one by one, and
  /// device seconds of the step.
  double issue_seconds = 0, device_seconds = 0;
  std::int64_t steps_since = 0;  ///< steps since the decision
  std::int64_t lists = 0;        ///< lists that came more than once
  std::int64_t graphs = 0;       ///< lists that became graphs
  std::int64_t graph_calls = 0;  ///< total calls in graphs
  std::int64_t launches = 0;     ///< launches of graphs so far
  /// Reasons why other lists are no graphs, each once with its number of lists
  std::vector<std::string> without;
  bool failed = false;  ///< one of the reasons: the device refused a capture
};

/// Counts of events that change numbers or speed. They are exported as counters, never only logged.
struct BackendCounters {
  /// GEMMs on bf16 operands computed in fp32, because the machine has no bf16 GEMM
  std::int64_t widened_gemms = 0;
  /// GEMMs that oneDNN computed by its reference loops, because it has no kernel
  std::int64_t reference_gemms = 0;
  /// Attention calls on a GPU with our own kernels, because the library has none
  std::int64_t own_attention = 0;
  std::int64_t attention_fallbacks = 0;  ///< of these, the calls that were planned for the library
  std::int64_t missed_gemm_choices = 0;  ///< GEMMs on a GPU without a timed choice, while choices are in use
};

/// Memory and math of one device. One virtual function per operator, at the largest useful fusion; arguments
/// in ops.h. Callers must pass valid shapes and dtypes; invalid ones throw std::logic_error.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Target& target() const = 0;
  virtual BackendCounters counters() const { return {}; }
  /// Sets target().tuning. Call before the first operator. A CPU has nothing to tune.
  virtual void tune(const Tuning& tuning) { static_cast<void>(tuning); }

  // Memory. `allocate` throws CapacityError. New memory is zeroed.
  virtual Buffer allocate(MemoryKind kind, std::int64_t bytes) = 0;
  virtual void copy(Stream&, const Tensor& from, const Tensor& to) = 0;  ///< same dtype and numel
  virtual void fill_zero(Stream&, const Tensor& x) = 0;
  /// Same as `copy`, between the device and memory of `allocate(host)`. Any thread that has called
  /// `enter_thread`.
  virtual void transfer(Stream&, const Tensor& from, const Tensor& to) = 0;
  /// Host to device; the source may be reused when this returns.
  virtual void write(Stream&, std::span<const std::byte> from, const Tensor& to) = 0;
  /// Same as `write` for the tensors `to`, one after the other, from bytes that `make` puts into `staging`. A
  /// backend without values neither creates nor stores the bytes, whatever their size.
  virtual void write_made(Stream&, std::span<const Tensor> to, std::vector<std::byte>& staging,
                          const std::function<void(std::span<std::byte>)>& make);
  /// Device to host; complete when this returns. One of the few documented ways to read a value back
  /// (core/README.md, section 4).
  virtual void read_back(Stream&, const Tensor& from, std::span<std::byte> to) = 0;

  // Streams and events.
  virtual std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Stream&, Event&) = 0;
  virtual void wait(Stream&, const Event&) = 0;
  virtual void wait_host(const Event&) = 0;
  virtual double elapsed_seconds(const Event& from, const Event& to) = 0;
  /// A thread other than the one that made the backend must call this before `transfer`, `record`, `wait` or
  /// `wait_host`. All other functions are only for the thread that made the backend. A stream is used by one
  /// thread at a time.
  virtual void enter_thread() = 0;

  /// Bytes of the prepared form for a role; 0 if the backend uses the plain form.
  virtual std::int64_t prepared_bytes(const PrepareWeight&) const = 0;

  // The operators: void name(Stream&, const Arguments&).
#define TRAINERD_OPERATOR(name, Args, cuda) virtual void name(Stream&, const Args&) = 0;
#include "kernels/ops/operators.def"

  /// From here to `close_list` the stream's calls belong to one place. A backend with graphs compares them
  /// with earlier lists of that place. Calls on other streams are not included. Other backends do nothing.
  virtual void open_list(Stream&, ListPlace) {}
  virtual void close_list(Stream&) {}
  /// Call between lists, at the end of a step that took `device_seconds` on the device.
  virtual void end_step(double device_seconds) { static_cast<void>(device_seconds); }
  virtual GraphUse graph_use() const { return {}; }

  /// Captures the calls that `issue` makes on its stream argument, without running them. They may be
  /// operators, copies and fills. Each must have run with these arguments before, so that libraries have
  /// finished their first-call setup. Throws DeviceError if the device cannot capture them, and leaves the
  /// backend unchanged.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void(Stream&)>& issue);
  /// Enqueues a graph that this backend captured.
  virtual void replay(Stream&, const DeviceGraph&);

  /// Sets the maximum workspace of attention's backward, as the rank's plan chose it
  /// (Target::attention_limit_bytes). Call before the first operator.
  virtual void limit_attention(std::int64_t bytes) { static_cast<void>(bytes); }

  /// Measures the library's fastest algorithm for each of a step's GEMMs, and returns the choices as text for
  /// `use_gemms`. Call before memory is planned: allocates device memory for the largest GEMM and frees it.
  /// Throws DeviceError if there is nothing to choose.
  virtual std::string time_gemms(std::span<const OpClass> gemms);
  /// From now on GEMMs use these choices. Throws DeviceError if they were made with another library or
  /// device.
  virtual void use_gemms(const std::string& choices);
};

inline void Backend::write_made(Stream& s, std::span<const Tensor> to, std::vector<std::byte>& staging,
                                const std::function<void(std::span<std::byte>)>& make) {
  std::size_t bytes = 0;
  for (const Tensor& t : to) bytes += static_cast<std::size_t>(t.bytes());
  staging.resize(bytes);
  make(staging);
  std::span<const std::byte> rest(staging);
  for (const Tensor& t : to) {
    write(s, rest.first(static_cast<std::size_t>(t.bytes())), t);
    rest = rest.subspan(static_cast<std::size_t>(t.bytes()));
  }
}
inline std::unique_ptr<DeviceGraph> Backend::capture(const std::function<void(Stream&)>&) {
  throw base::device_error("no graphs on " + target().name);
}
inline void Backend::replay(Stream&, const DeviceGraph&) {
  throw base::device_error("no graphs on " + target().name);
}
inline std::string Backend::time_gemms(std::span<const OpClass>) {
  throw base::device_error("no choice of GEMM algorithms on " + target().name);
}
inline void Backend::use_gemms(const std::string&) {
  throw base::device_error("no choice of GEMM algorithms on " + target().name);
}

}  // namespace trainerd::kernels
