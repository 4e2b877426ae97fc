#include <algorithm>
#include <thread>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/tokens/inspect.h"
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
                            : TokenType::automatic;
}

}  // namespace

int data_inspect_command(const DataInspectArgs& args) {
  io::InspectOptions options;
  if (!args.format.empty())
    options.format = args.format == "tokens" ? io::DataFormat::tokens : io::DataFormat::text;
  options.dtype = type_of(args.dtype);
  options.vocab = args.vocab;
  options.all = args.all;
  options.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
  const io::Inspection inspection = io::inspect_data(args.path, options);
  print(inspection.text);
  if (inspection.problems.empty()) return kExitDone;
  std::string what;
  for (std::size_t i = 0; i < std::min(inspection.problems.size(), kShownProblems); ++i)
    what += (i > 0 ? "\n" : "") + inspection.problems[i];
  if (inspection.problems.size() > kShownProblems)
    what += "\n... and " + std::to_string(inspection.problems.size() - kShownProblems) + " more files";
  throw base::data_error(what);
}

}  // namespace trainerd::apps
