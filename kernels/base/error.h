#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace trainerd::base {

/// Kinds of errors that the user must fix. Each kind has one exit code, which only `apps/` assigns.
enum class ErrorKind : std::uint8_t { spec, capacity, data, checkpoint, comm, diverged, device };

/// The kind's name in messages between worker and agent ("spec", "capacity", ...).
const char* to_string(ErrorKind kind);
/// Inverse of `to_string`. Returns false and leaves `kind` unchanged for an unknown name.
bool parse_error_kind(const std::string& word, ErrorKind& kind);

/// Base of every error that this project throws: what happened, how to fix it, and where it was thrown.
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

/// The job, the command line or the environment is wrong. Lists every problem found, one per line.
struct SpecError : Error {
  using Error::Error;
};
/// The job does not fit: which rank, which term, and what would fit.
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

// Builders, so that `throw data_error(...)` records the location of the throw.
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

/// Throws the error type that belongs to `kind`, for errors received from another process.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message,
                              std::source_location where = std::source_location::current());

/// Text for an errno value, such as "No space left on device".
std::string errno_text(int error_number);

/// Checks an invariant of this program (never of its input). Throws std::logic_error that names the location.
void check(bool invariant, const char* what, std::source_location where = std::source_location::current());

}  // namespace trainerd::base
