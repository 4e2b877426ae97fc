#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"
#include "kernels/ops/op_class.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

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

 private:
  std::string name_;
  Arena* scratch_;
};

/// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
};

enum class MemoryKind : std::uint8_t { device, host };

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
inline std::string Backend::time_gemms(std::span<const OpClass>) {
  throw base::device_error("no choice of GEMM algorithms on " + target().name);
}
inline void Backend::use_gemms(const std::string&) {
  throw base::device_error("no choice of GEMM algorithms on " + target().name);
}

}  // namespace trainerd::kernels
