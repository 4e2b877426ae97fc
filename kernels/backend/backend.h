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

/// Holds calls of a stream back, to put them on the device together.
class HeldCalls {
 public:
  /// All that was called on the stream is on the device when this returns.
  virtual void put_on_device() = 0;

 protected:
  ~HeldCalls() = default;
};

/// An ordered queue of device work with its own scratch stack. On the CPU and in the meta world work is done
/// at once. Operators take scratch from the stack and give it back before they return; it is empty between
/// actions.
class Stream {
 public:
  Stream(std::string name, Arena* scratch) : name_(std::move(name)), scratch_(scratch) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::string& name() const { return name_; }
  Arena& scratch() const { return *scratch_; }
  /// From now on operators take their scratch from `scratch`. Returns what they took it from before.
  Arena* exchange_scratch(Arena* scratch) { return std::exchange(scratch_, scratch); }

  /// Comes before anything that is put on the stream past its Backend (NCCL) or awaits it. A device's own
  /// handle of the stream is got behind it, so that no order is lost.
  void flush() const {
    if (held_by_ != nullptr) held_by_->put_on_device();
  }
  const HeldCalls* held_by() const { return held_by_; }
  void hold_by(HeldCalls* holder) { held_by_ = holder; }

 private:
  std::string name_;
  Arena* scratch_;
  HeldCalls* held_by_ = nullptr;
};

/// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
};

enum class MemoryKind : std::uint8_t { device, host };

/// Calls that a device captured once and runs as one: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// Which part of a step a list of calls is. A list is compared with those of the same place only.
struct ListPlace {
  std::string_view part;  ///< "forward": a constant
  int chunk = 0;          ///< of the rank's own
  bool of_step = true;    ///< if not, of an evaluation

  auto operator<=>(const ListPlace&) const = default;
};
/// A list of fewer calls is no graph: launching one takes about as long as a kernel or two.
inline constexpr std::int64_t kMinGraphCalls = 4;
/// Whether lists become graphs, by a step's seconds: of the host, to put their calls on the device one by
/// one, and of the device. Below a quarter the host is ahead almost everywhere.
constexpr bool graphs_pay(double issue_seconds, double device_seconds) {
  return issue_seconds > 0 && issue_seconds >= 0.25 * device_seconds;
}

/// What became of lists of calls: see GraphBackend.
struct GraphUse {
  /// `deciding` during the first steps.
  enum class State : std::uint8_t { none, deciding, not_worth, used } state = State::none;
  /// By which it was decided: of one step, the host's to put the lists' calls on the device one by one, and
  /// the device's for the step.
  double issue_seconds = 0, device_seconds = 0;
  std::int64_t steps_since = 0;      ///< ended after the decision
  std::int64_t lists = 0;            ///< that came more than once
  std::int64_t graphs = 0;           ///< those of them that are graphs
  std::int64_t graph_calls = 0;      ///< calls in graphs
  std::int64_t launches = 0;         ///< of graphs, so far
  std::vector<std::string> without;  ///< why other lists are no graphs: each reason once, with the lists
  bool failed = false;               ///< one of the reasons is that the device refused a capture
};

/// Things that happened which change numbers or speed and must be seen: exported as counters, never only
/// logged.
struct BackendCounters {
  std::int64_t widened_gemms =
      0;  ///< GEMMs on bf16 operands computed in fp32 because the machine has no bf16 GEMM
  std::int64_t reference_gemms =
      0;  ///< GEMMs that oneDNN computed by its reference loops, for want of a kernel
  std::int64_t own_attention = 0;  ///< attention calls on a GPU by our own kernels, for want of a library's
  std::int64_t attention_fallbacks = 0;  ///< those of them that were planned for the library
  std::int64_t missed_gemm_choices =
      0;  ///< GEMMs on a GPU that no timed choice applied to, while choices are in use
};

/// Memory and math of one device. One virtual for each operator at the largest useful fusion; arguments in
/// ops.h. Shapes and dtypes are checked by the caller's construction; a broken one throws std::logic_error.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Target& target() const = 0;
  virtual BackendCounters counters() const { return {}; }
  /// From now on target().tuning. Before the first operator; a CPU has nothing of the kind to choose.
  virtual void tune(const Tuning& tuning) { static_cast<void>(tuning); }

  // Memory. `allocate` throws CapacityError. Fresh memory reads as zero.
  virtual Buffer allocate(MemoryKind kind, std::int64_t bytes) = 0;
  virtual void copy(Stream&, const Tensor& from, const Tensor& to) = 0;  ///< same dtype and numel
  virtual void fill_zero(Stream&, const Tensor& x) = 0;
  /// As `copy`, between the device and memory of `allocate(host)`, from any thread that has called
  /// `enter_thread`.
  virtual void transfer(Stream&, const Tensor& from, const Tensor& to) = 0;
  /// Host to device; the source may be reused when this returns.
  virtual void write(Stream&, std::span<const std::byte> from, const Tensor& to) = 0;
  /// As `write` of the tensors `to`, one after the other, from the bytes that `make` puts into `staging`. A
  /// world without values neither makes nor holds them, whatever their size.
  virtual void write_made(Stream&, std::span<const Tensor> to, std::vector<std::byte>& staging,
                          const std::function<void(std::span<std::byte>)>& make);
  /// Device to host, complete when this returns. One of the few declared ways a value comes up
  /// (core/README.md, section 4).
  virtual void read_back(Stream&, const Tensor& from, std::span<std::byte> to) = 0;

  // Streams and events.
  virtual std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Stream&, Event&) = 0;
  virtual void wait(Stream&, const Event&) = 0;
  virtual void wait_host(const Event&) = 0;
  virtual double elapsed_seconds(const Event& from, const Event& to) = 0;
  /// Comes first on a thread, other than the one that made the backend, that calls `transfer`, `record`,
  /// `wait` or `wait_host` (all else is for that one alone). A stream is used by one thread at a time.
  virtual void enter_thread() = 0;

  /// Bytes of the prepared form for a role; 0 when the plain form serves as well.
  virtual std::int64_t prepared_bytes(const PrepareWeight&) const = 0;

  // The operators: void name(Stream&, const Arguments&).
#define TRAINERD_OPERATOR(name, Args, cuda) virtual void name(Stream&, const Args&) = 0;
#include "kernels/ops/operators.def"

  /// From here to `close_list` the stream gets the calls of one place: a world with graphs looks for them
  /// among those that came there before. Calls on other streams are no part of it. Others do nothing.
  virtual void open_list(Stream&, ListPlace) {}
  virtual void close_list(Stream&) {}
  /// Between lists: a step is over that took the device so long.
  virtual void end_step(double device_seconds) { static_cast<void>(device_seconds); }
  virtual GraphUse graph_use() const { return {}; }

  /// What `issue` calls on the stream that it is given, captured: nothing of it runs. Operators alone, copies
  /// and fills; each has run with these arguments before, so that what libraries make at a first call is
  /// made. Throws DeviceError where the device cannot capture it, and is as it was.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void(Stream&)>& issue);
  /// Puts a graph that this backend captured on the stream.
  virtual void replay(Stream&, const DeviceGraph&);

  /// The most workspace of attention's backward, as the rank's plan chose it (Target::attention_limit_bytes).
  /// Before the first operator.
  virtual void limit_attention(std::int64_t bytes) { static_cast<void>(bytes); }

  /// The library's quickest algorithm for each of a step's GEMMs, measured on the device, as text for
  /// `use_gemms`. Before memory is planned on: takes device memory for the largest and gives it back. Throws
  /// DeviceError where there is nothing to choose.
  virtual std::string time_gemms(std::span<const OpClass> gemms);
  /// From now on GEMMs run by these choices. Throws DeviceError when they were made with another library or
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
