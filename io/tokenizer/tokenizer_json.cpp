#include "io/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "io/text/json.h"
#include "io/tokenizer/pattern.h"

namespace trainerd::io {
namespace {

using nlohmann::json;

// The expression from GPT-2's encoder.py, which is built into ByteLevel.
constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr const char* kImplemented =
    "; this program reads byte-level BPE as of GPT-2, Llama 3 and Qwen, and BPE that falls back to bytes as "
    "of "
    "Llama 2, Mistral and Gemma. For another tokenizer take its "
    "SentencePiece model (tokenizer.model) where it has one, or write token files by its own library";

[[noreturn]] void refuse(const std::string& what) { throw JsonError(what + kImplemented); }

bool is_null(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

bool flag(const json& object, const char* key, bool otherwise) {
  if (is_null(object, key)) return otherwise;
  if (!object[key].is_boolean()) throw JsonError("\"" + std::string(key) + "\" is not true or false");
  return object[key].get<bool>();
}

const json& list(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_array()) throw JsonError("\"" + std::string(key) + "\" is not a list");
  return value;
}

// An unknown key may change the tokens, so it is refused.
void only_keys(const json& object, const std::string& what, std::initializer_list<const char*> keys) {
  if (!object.is_object()) throw JsonError(what + " is not an object");
  for (const auto& [key, value] : object.items())
    if (std::find_if(keys.begin(), keys.end(), [&](const char* k) { return key == k; }) == keys.end())
      refuse(what + " has the key \"" + key + "\", which is not known");
}

std::int32_t id_of(const json& value, const std::string& what) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
    throw JsonError("the id of " + what + " is no integer from 0 to 2147483646");
  return value.get<std::int32_t>();
}

void read_normalizer(const json& part, TokenizerJson& out) {
  const std::string type = string_member(part, "type");
  if (type == "NFC") {
    only_keys(part, "the normalizer NFC", {"type"});
    out.nfc = true;
  } else if (type == "Sequence") {
    only_keys(part, "a Sequence of normalizers", {"type", "normalizers"});
    for (const json& item : list(part, "normalizers")) read_normalizer(item, out);
  } else {
    refuse("its normalizer is " + type);
  }
}

void read_split(const json& part, TokenizerJson& out) {
  only_keys(part, "the pre-tokenizer Split", {"type", "pattern", "behavior", "invert"});
  const json& pattern = member(part, "pattern");
  only_keys(pattern, "the pattern of Split", {"Regex", "String"});
  if (pattern.size() != 1) throw JsonError("the pattern of Split is not one Regex or String");
  SplitStep step;
  step.expression = pattern.contains("Regex") ? string_member(pattern, "Regex")
                                              : literal_expression(string_member(pattern, "String"));
  const std::string behavior = string_member(part, "behavior");
  const bool invert = flag(part, "invert", false);
  // With Isolated both matches and gaps are pieces, whether inverted or not.
  if (behavior == "Isolated") step.kind = SplitStep::Kind::isolated;
  else if (behavior == "Removed" && invert) step.kind = SplitStep::Kind::kept;
  else refuse("its pre-tokenizer Split has the behavior " + behavior + (invert ? ", inverted" : ""));
  out.splits.push_back(std::move(step));
}

// Reads one step. Sets `byte_level` when it is ByteLevel, which must be the last step.
void read_pre_tokenizer(const json& part, TokenizerJson& out, bool& byte_level) {
  const std::string type = string_member(part, "type");
  if (byte_level) refuse("its pre-tokenizer has a step behind ByteLevel: " + type);
  if (type == "Sequence") {
    only_keys(part, "a Sequence of pre-tokenizers", {"type", "pretokenizers"});
    for (const json& item : list(part, "pretokenizers")) read_pre_tokenizer(item, out, byte_level);
  } else if (type == "Split") {
    read_split(part, out);
  } else if (type == "Digits") {
    only_keys(part, "the pre-tokenizer Digits", {"type", "individual_digits"});
    out.splits.push_back(
        {flag(part, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", SplitStep::Kind::isolated});
  } else if (type == "ByteLevel") {
    only_keys(part, "the pre-tokenizer ByteLevel", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    byte_level = true;
    out.prefix_space = flag(part, "add_prefix_space", true);
    if (flag(part, "use_regex", true)) out.byte_level_split = kGpt2Split;
  } else {
    refuse("its pre-tokenizer is " + type);
  }
}

void read_template(const json& part, TokenizerJson& out) {
  only_keys(part, "the post-processor TemplateProcessing", {"type", "single", "pair", "special_tokens"});
  const json& special = member(part, "special_tokens");
  bool text_seen = false;
  for (const json& item : list(part, "single")) {
    if (item.contains("Sequence")) {
      if (text_seen) throw JsonError("the post-processor's template has the text twice");
      text_seen = true;
      continue;
    }
    const std::string name = string_member(member(item, "SpecialToken"), "id");
    for (const json& id : list(member(special, name.c_str()), "ids"))
      (text_seen ? out.after : out.before).push_back(id_of(id, name));
  }
  if (!text_seen) throw JsonError("the post-processor's template has no place for the text");
}

void read_post_processor(const json& part, TokenizerJson& out) {
  const std::string type = string_member(part, "type");
  if (type == "Sequence") {
    only_keys(part, "a Sequence of post-processors", {"type", "processors"});
    for (const json& item : list(part, "processors")) read_post_processor(item, out);
  } else if (type == "TemplateProcessing") {
    if (!out.before.empty() || !out.after.empty()) refuse("it has two templates");
    read_template(part, out);
  } else if (type == "ByteLevel") {  // it changes only offsets, which are not used here
    only_keys(part, "the post-processor ByteLevel",
              {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else {
    refuse("its post-processor is " + type);
  }
}

// ByteLevel decodes ids to the bytes of their tokens; other decoders are refused.
void check_decoder(const json& part) {
  const std::string type = string_member(part, "type");
  if (type == "Sequence") {
    for (const json& item : list(part, "decoders")) check_decoder(item);
  } else if (type != "ByteLevel") {
    refuse("its decoder is " + type);
  }
}

// Returns the steps of a normalizer or a decoder, in order.
std::vector<json> steps_of(const json& file, const char* key, const char* list_key) {
  if (is_null(file, key)) return {};
  const json& part = file[key];
  if (string_member(part, "type") != "Sequence") return {part};
  only_keys(part, std::string("a Sequence in the ") + key, {"type", list_key});
  const json& steps = list(part, list_key);
  return {steps.begin(), steps.end()};
}

bool is_piece_space(const std::string& text) { return text == "\xe2\x96\x81"; }

// Returns true if the step is a Replace of the text `from` by the text `to`.
bool replaces(const json& step, const std::string& from, const std::string& to) {
  if (string_member(step, "type") != "Replace") return false;
  only_keys(step, "Replace", {"type", "pattern", "content"});
  const json& pattern = member(step, "pattern");
  only_keys(pattern, "the pattern of Replace", {"Regex", "String"});
  return pattern.size() == 1 && pattern.contains("String") && string_member(pattern, "String") == from &&
         string_member(step, "content") == to;
}

// Accepts the normalizers of Llama 2 (Prepend, Replace) and Gemma (Replace).
void read_space_normalizer(const json& file, SpaceRule& rule) {
  const std::vector<json> steps = steps_of(file, "normalizer", "normalizers");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string type = string_member(steps[i], "type");
    if (i == 0 && steps.size() == 2 && type == "Prepend" &&
        is_piece_space(string_member(steps[i], "prepend"))) {
      only_keys(steps[i], "the normalizer Prepend", {"type", "prepend"});
      rule.prefix = SpaceRule::Prefix::always;
    } else if (i + 1 == steps.size() && replaces(steps[i], " ", "\xe2\x96\x81")) {
      rule.normalizer = true;
    } else {
      refuse("its normalizer has the step " + type + ", which is not the one that puts U+2581 for a space");
    }
  }
}

// Accepts Metaspace as transformers writes it for Llama and Mistral, and Gemma's Split, which finds no space
// after its normalizer.
void read_space_pre_tokenizer(const json& file, SpaceRule& rule) {
  if (is_null(file, "pre_tokenizer")) {
    if (!rule.normalizer) refuse("neither its normalizer nor its pre-tokenizer puts U+2581 for a space");
    return;
  }
  const json& part = file["pre_tokenizer"];
  const std::string type = string_member(part, "type");
  if (type == "Split" && rule.normalizer) {
    only_keys(part, "the pre-tokenizer Split", {"type", "pattern", "behavior", "invert"});
    const json& pattern = member(part, "pattern");
    if (pattern.size() == 1 && pattern.contains("String") && string_member(pattern, "String") == " ") return;
    refuse("its pre-tokenizer Split cuts at another text than a space");
  }
  if (type != "Metaspace" || rule.normalizer) refuse("its pre-tokenizer is " + type);
  only_keys(part, "the pre-tokenizer Metaspace",
            {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (!is_piece_space(string_member(part, "replacement")))
    refuse("its pre-tokenizer Metaspace replaces a space by another character than U+2581");
  if (flag(part, "split", true)) refuse("its pre-tokenizer Metaspace splits at spaces (split)");
  const std::string scheme =
      is_null(part, "prepend_scheme") ? "always" : string_member(part, "prepend_scheme");
  if (scheme == "first") rule.prefix = SpaceRule::Prefix::first;
  else if (scheme == "always") rule.prefix = SpaceRule::Prefix::missing;
  else if (scheme != "never") refuse("its pre-tokenizer Metaspace has the prepend_scheme " + scheme);
}

void read_space_decoder(const json& file, SpaceRule& rule) {
  for (const json& step : steps_of(file, "decoder", "decoders")) {
    const std::string type = string_member(step, "type");
    if (type == "Strip") {
      only_keys(step, "the decoder Strip", {"type", "content", "start", "stop"});
      if (string_member(step, "content") != " " || member(step, "start") != 1 || member(step, "stop") != 0)
        refuse("its decoder Strip takes more than one space off the beginning");
      rule.strips_first_space = true;
    } else if (type == "Metaspace") {
      rule.strips_first_space = is_null(step, "prepend_scheme") || step["prepend_scheme"] != "never";
    } else if (type != "ByteFallback" && type != "Fuse" && !replaces(step, "\xe2\x96\x81", " ")) {
      refuse("its decoder is " + type);
    }
  }
}

SpaceRule read_space_rule(const json& file) {
  SpaceRule rule;
  read_space_normalizer(file, rule);
  read_space_pre_tokenizer(file, rule);
  read_space_decoder(file, rule);
  return rule;
}

void read_added(const json& part, TokenizerJson& out) {
  only_keys(part, "an added token",
            {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = string_member(part, "content");
  token.id = id_of(member(part, "id"), "\"" + token.content + "\"");
  if (token.content.empty()) throw JsonError("an added token has no text");
  if (flag(part, "single_word", false))
    refuse("its added token \"" + token.content + "\" is found as a single word alone (single_word)");
  token.lstrip = flag(part, "lstrip", false);
  token.rstrip = flag(part, "rstrip", false);
  token.normalized = flag(part, "normalized", true);
  token.special = flag(part, "special", false);
  out.added.push_back(std::move(token));
}

void read_merge(const json& item, TokenizerJson& out) {
  if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
    out.merges.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
    return;
  }
  const std::string text = item.is_string() ? item.get<std::string>() : "";
  const std::size_t space = text.find(' ');
  if (space == 0 || space == std::string::npos || text.find(' ', space + 1) != std::string::npos ||
      space + 1 == text.size())
    throw JsonError("merge " + std::to_string(out.merges.size()) + " is not two tokens");
  out.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
}

void read_model(const json& model, TokenizerJson& out) {
  // Files of older versions (such as GPT-2's) have no type.
  if (is_null(model, "type") && (is_null(model, "merges") || is_null(model, "vocab")))
    refuse("its model has no type");
  if (!is_null(model, "type") && string_member(model, "type") != "BPE")
    refuse("its model is " + string_member(model, "type"));
  only_keys(model, "the model",
            {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!is_null(model, "dropout") && model["dropout"] != 0)
    refuse("its model drops merges at random (dropout)");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_null(model, key) && !string_member(model, key).empty())
      refuse(std::string("its model has ") + key + " \"" + string_member(model, key) + "\"");
  if (flag(model, "byte_fallback", false)) out.spaces.emplace();
  out.ignore_merges = flag(model, "ignore_merges", false);
  const json& vocab = member(model, "vocab");
  if (!vocab.is_object()) throw JsonError("\"vocab\" is not an object");
  for (const auto& [token, id] : vocab.items()) out.vocab.emplace_back(token, id_of(id, "\"" + token + "\""));
  for (const json& item : list(model, "merges")) read_merge(item, out);
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text) {
  const json file = parse_json(text);
  only_keys(file, "the file",
            {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  if (!is_null(file, "version") && string_member(file, "version") != "1.0")
    refuse("its version is " + string_member(file, "version"));
  for (const char* key : {"truncation", "padding"})
    if (!is_null(file, key))
      throw JsonError("it has " + std::string(key) + ", which would change documents: set it to null");
  TokenizerJson out;
  read_model(member(file, "model"), out);
  if (out.spaces) {
    *out.spaces = read_space_rule(file);
  } else {
    if (!is_null(file, "normalizer")) read_normalizer(file["normalizer"], out);
    bool byte_level = false;
    if (!is_null(file, "pre_tokenizer")) read_pre_tokenizer(file["pre_tokenizer"], out, byte_level);
    if (!byte_level) refuse("it has no ByteLevel pre-tokenizer");
    if (!is_null(file, "decoder")) check_decoder(file["decoder"]);
  }
  if (!is_null(file, "post_processor")) read_post_processor(file["post_processor"], out);
  if (!is_null(file, "added_tokens"))
    for (const json& item : list(file, "added_tokens")) read_added(item, out);
  return out;
}

}  // namespace trainerd::io
