#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/commands.h"
#include "apps/data_options.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/tokens/inspect.h"
#include "io/tokens/verify.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

constexpr unsigned kMaxThreads = 16;
constexpr std::size_t kShownProblems = 10;

io::TokenType type_of(const std::string& word) {
  using io::TokenType;
  return word == "uint8"    ? TokenType::uint8
         : word == "uint16" ? TokenType::uint16
         : word == "int32"  ? TokenType::int32
         : word == "uint32" ? TokenType::uint32
         : word == "int64"  ? TokenType::int64
                            : TokenType::automatic;
}

io::InspectOptions options_of(const std::string& format, const std::string& dtype, std::int64_t vocab) {
  io::InspectOptions options;
  if (!format.empty()) options.format = format == "tokens" ? io::DataFormat::tokens : io::DataFormat::text;
  options.dtype = type_of(dtype);
  options.vocab = vocab;
  options.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
  return options;
}

/// Throws DataError where there are any.
void throw_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string what;
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i)
    what += (i > 0 ? "\n" : "") + problems[i];
  if (problems.size() > kShownProblems)
    what += "\n... and " + std::to_string(problems.size() - kShownProblems) + " more";
  throw base::data_error(what);
}

}  // namespace

int data_inspect_command(const DataInspectArgs& args) {
  io::InspectOptions options = options_of(args.format, args.dtype, args.vocab);
  options.all = args.all;
  options.seq_len = args.seq_len;
  options.files = data_files_of({args.path});
  const io::Inspection inspection = io::inspect_data(args.path, options);
  print(inspection.text);
  throw_problems(inspection.problems);
  return kExitDone;
}

int data_verify_command(const DataVerifyArgs& args) {
  io::InspectOptions options = options_of(args.format, args.dtype, args.vocab);
  options.files = data_files_of(args.paths);
  const io::Verification verification = io::verify_data(args.paths, options);
  print(verification.text);
  throw_problems(verification.problems);
  print("no problems were found\n");
  return kExitDone;
}

}  // namespace trainerd::apps
