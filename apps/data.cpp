#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "apps/commands.h"
#include "apps/data_options.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"
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

/// Throws DataError if there are problems.
void throw_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string what;
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i)
    what += (i > 0 ? "\n" : "") + problems[i];
  if (problems.size() > kShownProblems)
    what += "\n... and " + std::to_string(problems.size() - kShownProblems) + " more";
  throw base::data_error(what);
}

/// The first document's text, decoded by the named tokenizer or the one that the data names, if that exists.
std::vector<io::ShownLine> shown_tokens(const std::string& named,
                                        const std::optional<io::DatasetTokenizer>& data,
                                        std::span<const std::int32_t> first) {
  if (named.empty() && !data) return {};
  const std::string file = named.empty() ? data->file : named;
  std::vector<io::ShownLine> lines;
  const auto tokenizer_line = [&](const std::string& hash, std::int64_t vocab) {
    const std::string name = file.empty() ? "not named" : file;
    lines.push_back({"tokenizer", "tokenizer", name, name});
    lines.push_back({"its hash", "tokenizer_hash", hash, hash});
    lines.push_back({"its vocabulary", "tokenizer_vocab", std::to_string(vocab), vocab});
  };
  std::unique_ptr<io::Tokenizer> tokenizer;
  std::string reason = "dataset.json does not name its file: give it by --tokenizer";
  try {
    if (!file.empty()) tokenizer = io::open_tokenizer(file);
  } catch (const base::DataError& error) {
    if (!named.empty()) throw;
    reason = error.what();
  }
  if (tokenizer && data && tokenizer->info().hash != data->hash) {
    reason = file + " is the tokenizer " + tokenizer->info().hash + ", and " + data->path + " says " +
             data->hash + ": name the one that made the data by --tokenizer";
    if (!named.empty()) throw base::data_error(reason);
    tokenizer.reset();
  }
  tokenizer_line(data ? data->hash : tokenizer->info().hash, data ? data->vocab : tokenizer->info().vocab);
  std::string text = "not decoded: " + reason, decoded = text;
  try {
    if (tokenizer) {
      decoded = io::with_replacements(tokenizer->decode(first));
      text = io::to_text(nlohmann::json(decoded));
    }
  } catch (const base::DataError& error) {
    text = decoded = std::string("not decoded: ") + error.what();
  }
  lines.push_back({"first document", "first_document", text, decoded});
  return lines;
}

}  // namespace

int data_inspect_command(const DataInspectArgs& args) {
  io::InspectOptions options = options_of(args.format, args.dtype, args.vocab);
  options.all = args.all;
  options.seq_len = args.seq_len;
  options.files = data_files_of({args.path});
  options.show = [&args](const auto& data, std::span<const std::int32_t> first) {
    return shown_tokens(args.tokenizer, data, first);
  };
  const io::Inspection inspection = io::inspect_data(args.path, options);
  print(args.json ? inspection.json : inspection.text);
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
