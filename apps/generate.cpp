#include "apps/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "apps/exit_codes.h"
#include "apps/number_check.h"
#include "apps/output.h"
#include "core/generate/sampling.h"
#include "core/generate/token_scorer.h"
#include "core/hf/adapters.h"
#include "core/hf/companions.h"
#include "io/chat/chat_tokens.h"
#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

struct OpenedTokenizer {
  std::string file;
  std::unique_ptr<io::Tokenizer> tokenizer;
};

// If both tokenizer.json and tokenizer.model exist, the first that can be read. A tokenizer.json converted
// from a SentencePiece model cannot.
OpenedTokenizer open_tokenizer(const GenerateArgs& args, const core::hf::WeightSource& weights) {
  if (!args.tokenizer.empty()) return {args.tokenizer, io::open_tokenizer(args.tokenizer)};
  const auto exists = [&](const std::string& file) {
    std::error_code error;
    return !weights.tokenizer().empty() && std::filesystem::exists(file, error);
  };
  const std::string json = weights.tokenizer() + "/tokenizer.json";
  const std::string model = weights.tokenizer() + "/tokenizer.model";
  if (exists(json)) {
    try {
      return {json, io::open_tokenizer(json)};
    } catch (const base::DataError&) {
      if (!exists(model)) throw;
    }
  }
  if (exists(model)) return {model, io::open_tokenizer(model)};
  if (weights.model().vocab == 256) return {"bytes", io::open_tokenizer("bytes")};
  throw base::spec_error(args.from +
                         ": no tokenizer lies with the weights: name it by --tokenizer, a tokenizer.json, a "
                         "SentencePiece model, or bytes");
}

std::string prompt_of(const GenerateArgs& args) {
  std::string text = args.prompt;
  if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  if (const std::size_t bad = io::invalid_utf8(text); bad != std::string::npos)
    throw base::data_error("the prompt is not UTF-8: byte " + std::to_string(bad));
  return text;
}

/// The prompt's ids, and the ids that end the answer.
struct Prompt {
  std::vector<std::int32_t> ids, ends;
};

Prompt encode_prompt(const GenerateArgs& args, const core::hf::WeightSource& weights,
                     const OpenedTokenizer& opened, std::string text) {
  const io::Tokenizer& tokenizer = *opened.tokenizer;
  Prompt prompt;
  if (!args.ignore_end) prompt.ends = core::hf::end_ids(weights.origin());
  if (tokenizer.info().eos && !args.ignore_end) prompt.ends.push_back(*tokenizer.info().eos);
  if (!args.chat.empty()) {
    const auto chat = io::chat_template_of(args.chat);
    if (!chat)
      throw base::spec_error("--chat: there is no template \"" + args.chat + "\"; there are " +
                             io::chat_template_names());
    const io::TemplateTokens tokens = io::template_tokens(*chat, tokenizer, opened.file);
    text = io::render_chat(*chat, {{.role = "user", .content = text, .reasoning = {}}}, tokens).text +
           io::assistant_begin(*chat);
    if (const auto end = tokenizer.id_of(io::turn_end(*chat, tokens)); end && !args.ignore_end)
      prompt.ends.push_back(*end);
  } else {
    prompt.ids = tokenizer.info().before;
  }
  try {
    const auto encoder =
        args.chat.empty() ? tokenizer.encoder(io::SpecialText::token) : tokenizer.template_encoder();
    encoder->encode(text, prompt.ids);
  } catch (const io::EncodeError& error) {
    throw base::data_error(std::string("the prompt cannot be encoded: ") + error.what());
  }
  if (prompt.ids.empty()) throw base::spec_error("--prompt: it is empty: give at least one token");
  for (const std::int32_t id : prompt.ids)
    if (id >= weights.model().vocab)
      throw base::data_error(fmt::format(
          "the prompt has the id {}, and the model's vocabulary is {}: the tokenizer is of another model", id,
          weights.model().vocab));
  return prompt;
}

/// Prints a growing text, in complete characters only.
class Shown {
 public:
  void show(const std::string& text) {
    const std::string_view rest = std::string_view(text).substr(done_);
    const std::size_t bad = io::invalid_utf8(rest);
    // Up to three bytes may be the begin of an incomplete character; a longer invalid rest never becomes one.
    const std::size_t whole = bad == std::string_view::npos || rest.size() - bad > 3 ? rest.size() : bad;
    print(io::with_replacements(rest.substr(0, whole)));
    done_ += whole;
  }
  void finish(const std::string& text) {
    print(io::with_replacements(std::string_view(text).substr(done_)) + "\n");
    done_ = text.size();
  }

 private:
  std::size_t done_ = 0;
};

}  // namespace

CLI::App* add_generate(CLI::App& app, GenerateArgs& args) {
  CLI::App* generate =
      app.add_subcommand("generate", "Continue a text by a trained model, to see what it learned");
  generate
      ->add_option("CKPT", args.from, "A checkpoint, a run's output: its newest, or a Hugging Face directory")
      ->required();
  generate->add_option("--prompt", args.prompt, "The text; - reads it from standard input")
      ->required()
      ->type_name("TEXT");
  generate
      ->add_option("--chat", args.chat,
                   "The prompt is a user's message in this template: " + io::chat_template_names())
      ->type_name("TEMPLATE");
  generate->add_option("--max-tokens", args.max_tokens, "To make at most")
      ->check(positive())
      ->capture_default_str()
      ->type_name("N");
  generate->add_option("--temperature", args.temperature, "0 takes the likeliest token each time")
      ->check(between(0.0, 100.0))
      ->capture_default_str();
  generate->add_option("--top-k", args.top_k, "Draw of the k likeliest alone; 0: of all")
      ->check(not_negative())
      ->capture_default_str()
      ->type_name("K");
  generate->add_option("--top-p", args.top_p, "Draw of the fewest likeliest that have this share together")
      ->check(between(1e-9, 1.0))
      ->capture_default_str()
      ->type_name("P");
  generate->add_option("--seed", args.seed, "RNG seed of the sampling")
      ->check(whole_number())
      ->capture_default_str()
      ->type_name("N");
  generate->add_flag("--ignore-eos", args.ignore_end, "Go on behind a token that ends the text");
  generate
      ->add_option("--tokenizer", args.tokenizer,
                   "A tokenizer.json, a SentencePiece model, or bytes; default: the one with the weights; of "
                   "tokenizer.json and tokenizer.model the first that can be read")
      ->type_name("FILE|bytes");
  generate->add_option("--device", args.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  generate->add_option("--precision", args.precision, "fp32, bf16 or fp16; default: as the weights are")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  generate->add_option("--threads", args.threads, "Default: one for each core")
      ->check(positive())
      ->type_name("N");
  generate->add_flag("--json", args.json, "One JSON object: prompt, text, prompt_ids, ids, end");
  generate->footer(
      "Each new token needs a forward pass over the whole text: this is for looking at a model, not for "
      "serving it.\n\n"
      "  trainerd generate runs/quickstart --prompt 'template <class T> '");
  return generate;
}

int generate_command(const GenerateArgs& args) {
  const std::unique_ptr<core::hf::WeightSource> weights = core::hf::open_model(args.from);
  const OpenedTokenizer opened = open_tokenizer(args, *weights);
  const io::Tokenizer* tokenizer = opened.tokenizer.get();
  const std::string text = prompt_of(args);
  const Prompt prompt = encode_prompt(args, *weights, opened, text);
  const auto given = static_cast<std::int64_t>(prompt.ids.size());
  core::generate::TokenScorer scorer(*weights, {.device = args.device,
                                                .precision = args.precision,
                                                .threads = args.threads,
                                                .longest = given + args.max_tokens - 1});
  // A model's vocabulary may be padded: ids without text are never generated.
  const auto known = static_cast<std::size_t>(std::min(weights->model().vocab, tokenizer->info().vocab));
  const core::generate::Sampling sampling{
      .temperature = args.temperature, .top_k = args.top_k, .top_p = args.top_p, .seed = args.seed};
  std::vector<std::int32_t> ids = prompt.ids, made;
  Shown shown;
  // Decoded together with the prompt, because SentencePiece drops the space of a text's first token.
  const std::size_t prompt_bytes = tokenizer->decode(prompt.ids).size();
  const auto answer = [&] { return tokenizer->decode(ids).substr(prompt_bytes); };
  const std::string before = args.chat.empty() ? text : "";
  const auto all = [&] { return before + answer(); };
  const char* end = "length";
  const double begin = base::monotonic_seconds();
  if (!args.json) shown.show(before);
  for (std::int64_t i = 0; i < args.max_tokens; ++i) {
    std::int32_t id = 0;
    try {
      id = core::generate::choose(scorer.next(ids).first(known), sampling, i);
    } catch (const std::invalid_argument&) {
      throw base::data_error(args.from + ": the model's scores are not finite: its weights are damaged");
    }
    if (std::find(prompt.ends.begin(), prompt.ends.end(), id) != prompt.ends.end()) {
      end = "stop";
      break;
    }
    ids.push_back(id);
    made.push_back(id);
    if (!args.json) shown.show(all());
  }
  const double seconds = base::monotonic_seconds() - begin;
  if (args.json) {
    const nlohmann::ordered_json j{
        {"prompt", text}, {"text", answer()}, {"prompt_ids", prompt.ids}, {"ids", made}, {"end", end}};
    print(io::to_text(j) + "\n");
    return kExitDone;
  }
  shown.finish(all());
  print_error(fmt::format("{} tokens in {:.1f} s", made.size(), seconds));
  return kExitDone;
}

}  // namespace trainerd::apps
