#include <array>
#include <charconv>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "apps/signals.h"
#include "core/hf/convert.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

/// "5GB", "500MB", "2GiB", or a number of bytes, as transformers' max_shard_size.
std::int64_t shard_bytes(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr std::array<Unit, 7> kUnits{
      {{"", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  for (const Unit& known : kUnits)
    if (const double bytes = number * known.bytes;
        error == std::errc() && unit == known.name && bytes >= 1 && bytes < 0x1p60)
      return static_cast<std::int64_t>(bytes);
  throw base::spec_error("--max-shard-size " + text + ": expected a size such as 5GB, 500MB or 2GiB");
}

}  // namespace

int export_command(const ExportArgs& args) {
  core::hf::ExportOptions options{.from = args.from, .out = args.out, .tokenizer = !args.no_tokenizer};
  if (args.adapter) options.form = core::hf::AdapterForm::adapter;
  if (args.merge) options.form = core::hf::AdapterForm::merged;
  options.base = args.base;
  options.average = args.ema;
  if (!args.dtype.empty())
    options.element = args.dtype == "fp16"   ? core::hf::Element::f16
                      : args.dtype == "bf16" ? core::hf::Element::bf16
                                             : core::hf::Element::f32;
  if (!args.max_shard_size.empty()) options.most_shard_bytes = shard_bytes(args.max_shard_size);
  RemoveOnSignal interrupted;
  options.on_partial = [&interrupted](const std::string& partial) { interrupted.set(partial); };
  const core::hf::Exported exported = core::hf::export_weights(options);
  for (const std::string& note : exported.notes) say(args.out + ": " + note);
  const std::string what = !exported.form                                    ? ""
                           : exported.form == core::hf::AdapterForm::adapter ? "LoRA adapters for "
                                                                             : "merged ";
  print(args.out + ": " + what + exported.architecture + " of " + exported.from + ", " +
        io::short_bytes(exported.bytes) + " in " + std::to_string(exported.files) +
        (exported.files == 1 ? " file\n" : " files\n") +
        (exported.tokenizer.empty()
             ? args.no_tokenizer
                   ? "tokenizer: left out\n"
                   : "tokenizer: none: the model was not trained from one that has one; a model "
                     "of bytes takes each byte for a token\n"
             : "tokenizer: " + exported.tokenizer + "\n"));
  return kExitDone;
}

}  // namespace trainerd::apps
