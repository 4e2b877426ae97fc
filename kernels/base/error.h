#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace trainerd::base {

/// What the user must mend. Each kind has one exit code, given by `apps/` alone.
enum class ErrorKind : std::uint8_t { spec, capacity, data, checkpoint, comm, diverged, device };

/// The kind's name on the wire between worker and agent ("spec", "capacity", ...).
const char* to_string(ErrorKind kind);
/// Inverse of `to_string`. False, and `kind` unchanged, for an unknown name.
bool parse_error_kind(const std::string& word, ErrorKind& kind);

/// Base of every error this project throws: what happened, what to do, and where it was thrown.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::source_location where)
      : std::runtime_error(message), kind_(kind), where_(where) {}
  ErrorKind kind() const { return kind_; }
  const std::source_location& where() const { return where_; }

 private:
  ErrorKind kind_;
  std::source_location where_;
};

/// The job, the command line or the environment is wrong: mend it. Carries every problem found, one per line.
struct SpecError : Error {
  using Error::Error;
};
/// The job does not fit: which rank, which term, what would fit.
struct CapacityError : Error {
  using Error::Error;
};
struct DataError : Error {
  using Error::Error;
};
struct CheckpointError : Error {
  using Error::Error;
};
/// A peer has failed or is late: the message names the rank and the collective.
struct CommError : Error {
  using Error::Error;
};
/// The loss or a gradient is not finite: which tensor, at which step.
struct DivergedError : Error {
  using Error::Error;
};
struct DeviceError : Error {
  using Error::Error;
};

// Builders, so that `throw data_error(...)` records its own location.
SpecError spec_error(std::string message, std::source_location where = std::source_location::current());
CapacityError capacity_error(std::string message,
                             std::source_location where = std::source_location::current());
DataError data_error(std::string message, std::source_location where = std::source_location::current());
CheckpointError checkpoint_error(std::string message,
                                 std::source_location where = std::source_location::current());
CommError comm_error(std::string message, std::source_location where = std::source_location::current());
DivergedError diverged_error(std::string message,
                             std::source_location where = std::source_location::current());
DeviceError device_error(std::string message, std::source_location where = std::source_location::current());

/// Throws the error type that belongs to `kind`: how an error crosses a process boundary.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message,
                              std::source_location where = std::source_location::current());

/// "No space left on device"-style text for an errno value.
std::string errno_text(int error_number);

/// A broken invariant of this program itself (never of its input): throws std::logic_error naming the place.
void check(bool invariant, const char* what, std::source_location where = std::source_location::current());

}  // namespace trainerd::base
