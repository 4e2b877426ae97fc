#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "apps/commands.h"
#include "apps/data_options.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/prepare/prepare.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

io::PrepareOptions options_of(const DataPrepareArgs& args) {
  io::PrepareOptions options;
  options.inputs = args.inputs;
  options.out = args.out;
  options.tokenizer = args.tokenizer;
  options.field = args.field;
  options.completion = args.completion;
  options.pairs = args.pairs;
  options.pair_tokens = args.pair_tokens;
  if (!args.chat.empty()) {
    options.chat = io::chat_template_of(args.chat);
    if (!options.chat)
      throw base::spec_error("--chat: there is no template \"" + args.chat + "\"; there are " +
                             io::chat_template_names());
  }
  options.format = args.format == "text"    ? io::InputFormat::text
                   : args.format == "jsonl" ? io::InputFormat::json_lines
                                            : io::InputFormat::automatic;
  if (args.split_documents) options.split = io::TextSplit::paragraphs;
  if (args.no_append_eos) options.end = io::DocumentEnd::none;
  else if (args.append_eos) options.end = io::DocumentEnd::append;
  options.end_token = args.eos;
  if (args.add_special_tokens) options.around = io::TemplateIds::add;
  if (args.specials_as_text) options.specials = io::SpecialText::plain;
  options.dtype = args.dtype == "uint8"    ? io::TokenType::uint8
                  : args.dtype == "uint16" ? io::TokenType::uint16
                  : args.dtype == "int32"  ? io::TokenType::int32
                                           : io::TokenType::automatic;
  options.workers = args.workers > 0 ? static_cast<int>(args.workers)
                                     : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  options.files = data_files_of(args.inputs, options.workers);
  return options;
}

// One line per second on a terminal, one per 30 s in a log.
void show(const io::PrepareProgress& p, double& shown) {
  if (p.seconds - shown < (::isatty(STDERR_FILENO) == 1 ? 0.5 : 29.5)) return;
  shown = p.seconds;
  const double rate = (p.done_bytes - p.started_bytes) / p.seconds;
  std::string line =
      fmt::format("{:3.0f} %  {} of {}, {}", 100 * p.done_bytes / p.total_bytes,
                  io::short_bytes(static_cast<std::int64_t>(p.done_bytes)),
                  io::short_bytes(static_cast<std::int64_t>(p.total_bytes)), io::with_unit(rate, "B/s"));
  if (rate > 0 && p.total_bytes > p.done_bytes)
    line += ", " + io::short_duration((p.total_bytes - p.done_bytes) / rate) + " left";
  print_error(line);
}

}  // namespace

int data_prepare_command(const DataPrepareArgs& args) {
  double shown = 0;
  const io::PrepareOptions options = options_of(args);
  const io::Prepared done =
      io::prepare_data(options, [&](const io::PrepareProgress& progress) { show(progress, shown); });
  if (done.complete_before) {
    print(args.out + ": complete already\n");
    return kExitDone;
  }
  std::string text =
      fmt::format("{}: {} tokens in {} documents, of {} of input\n", args.out, io::with_commas(done.tokens),
                  io::with_commas(done.documents), io::short_bytes(done.input_bytes));
  if (done.empty_documents > 0)
    text += fmt::format("  {} empty documents were left out\n", io::with_commas(done.empty_documents));
  if (done.long_pairs > 0)
    text += fmt::format("  {} pairs of more than {} tokens were left out\n", io::with_commas(done.long_pairs),
                        io::with_commas(options.pair_tokens));
  if (done.learned)
    text += fmt::format("  {} of the tokens count in the loss ({:.1f} %)\n", io::with_commas(*done.learned),
                        100.0 * static_cast<double>(*done.learned) / static_cast<double>(done.tokens));
  if (done.kept_files > 0)
    text +=
        fmt::format("  {} of {} parts were finished by an earlier command\n", done.kept_files, done.files);
  text += fmt::format("  train on it: data: {{train: [{}], format: tokens}}{}\n", args.out,
                      args.pairs ? ", loss: {dpo: {beta: 0.1}}" : "");
  print(text);
  return kExitDone;
}

}  // namespace trainerd::apps
