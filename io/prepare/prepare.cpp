#include "io/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "io/chat/chat_tokens.h"
#include "io/hash/hash.h"
#include "io/prepare/documents.h"
#include "io/prepare/indexed_writer.h"
#include "io/prepare/loss_mask.h"
#include "io/prepare/parts.h"
#include "io/prepare/work_folder.h"
#include "io/text/json.h"
#include "io/tokens/token_layout.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

// How documents are written, apart from the ids of their text.
struct DocumentForm {
  TokenType type = TokenType::int32;
  std::vector<std::int32_t> before, after;
  std::optional<std::int32_t> end;
  LineForm line;
  LossMask mask = LossMask::none;
};

std::optional<std::int32_t> end_id(const PrepareOptions& options, const Tokenizer& tokenizer) {
  if (options.end == DocumentEnd::none) return std::nullopt;
  // A template ends the turns itself.
  if (options.chat && options.end == DocumentEnd::automatic && options.end_token.empty()) return std::nullopt;
  if (!options.end_token.empty()) {
    const auto id = tokenizer.id_of(options.end_token);
    if (!id)
      throw base::spec_error("--eos: " + options.tokenizer + " has no token \"" + options.end_token + "\"");
    return id;
  }
  if (options.end == DocumentEnd::append && !tokenizer.info().eos)
    throw base::spec_error("--append-eos: " + options.tokenizer +
                           " does not name a token that ends a text: give its text by --eos, or keep the "
                           "tokenizer_config.json with its eos_token beside the tokenizer.json");
  return tokenizer.info().eos;
}

// A loss mask needs the positions of the tokens in the text.
void check_places(const std::string& option, const std::string& file, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;
  try {
    tokenizer.encoder(SpecialText::token)->encode_placed("", ids, ends);
  } catch (const EncodeError& error) {
    throw base::spec_error(option + ": " + file + ": " + error.what());
  }
}

// Returns how documents are read from a JSON line.
LineForm line_form(const PrepareOptions& options, const Tokenizer& tokenizer) {
  LineForm line;
  line.chat = options.chat;
  line.completion = options.completion;
  line.field = !options.field.empty()        ? options.field
               : options.chat                ? "messages"
               : !options.completion.empty() ? "prompt"
                                             : "text";
  line.normal_form = [&tokenizer](std::string_view text) { return tokenizer.normal_form(text); };
  line.pairs = options.pairs;
  const bool marks = options.chat || options.pairs || !options.completion.empty();
  const char* option = options.pairs ? "--pairs" : options.chat ? "--chat" : "--completion";
  if (options.pairs && !options.completion.empty())
    throw base::spec_error(
        "--completion: with --pairs what follows the prompt is in chosen and rejected: leave it out");
  if (options.pairs && !options.field.empty())
    throw base::spec_error("--field: --pairs reads the fields prompt, chosen and rejected: leave it out");
  if (options.pair_tokens > 0 && !options.pairs)
    throw base::spec_error("--pair-tokens: it is for --pairs: leave it out");
  if (options.chat && !options.completion.empty())
    throw base::spec_error(
        "--completion: --chat marks the assistant's part of the messages: give one of them");
  if (marks) check_places(option, options.tokenizer, tokenizer);
  if (!options.chat) return line;
  const std::string name(name_of(*options.chat));
  if (options.specials == SpecialText::plain)
    throw base::spec_error("--specials-as-text: the template " + name + " is written in special tokens");
  if (options.around == TemplateIds::add)
    throw base::spec_error("--add-special-tokens: the template " + name + " has its own");
  line.tokens = template_tokens(*options.chat, tokenizer, options.tokenizer);
  return line;
}

DocumentForm form_of(const PrepareOptions& options, const Tokenizer& tokenizer) {
  const TokenizerInfo& info = tokenizer.info();
  DocumentForm form;
  form.type = info.vocab <= 256     ? TokenType::uint8
              : info.vocab <= 65536 ? TokenType::uint16
                                    : TokenType::int32;
  if (options.dtype != TokenType::automatic) {
    base::check(options.dtype != TokenType::uint32, "the index has no uint32");
    if (width_of(options.dtype) < width_of(form.type))
      throw base::spec_error(
          fmt::format("--dtype: {} cannot hold a vocabulary of {}: leave it out, or take {}",
                      name_of(options.dtype), info.vocab, name_of(form.type)));
    form.type = options.dtype;
  }
  form.end = end_id(options, tokenizer);
  form.line = line_form(options, tokenizer);
  if (options.chat || options.pairs || !options.completion.empty()) form.mask = LossMask::written;
  if (options.around == TemplateIds::add) {
    if (info.before.empty() && info.after.empty())
      throw base::spec_error("--add-special-tokens: " + options.tokenizer + " adds none to a text");
    form.before = info.before;
    form.after = info.after;
  }
  return form;
}

// Returns all settings that the tokens depend on, apart from the inputs.
std::string settings_of(const PrepareOptions& options, const Tokenizer& tokenizer, const DocumentForm& form) {
  std::string text = fmt::format(
      "format 1\ntokenizer {} vocab {}\ntype {}\nbefore {} after {} end {}\nspecials {}\nfield {}",
      tokenizer.info().hash, tokenizer.info().vocab, name_of(form.type), fmt::join(form.before, ","),
      fmt::join(form.after, ","), form.end ? std::to_string(*form.end) : "none",
      static_cast<int>(options.specials), form.line.field);
  if (options.chat)
    text += fmt::format("\nchat {} {}{}", name_of(*options.chat), form.line.tokens.bos, form.line.tokens.eos);
  if (!options.completion.empty()) text += "\ncompletion " + options.completion;
  if (options.pairs) text += fmt::format("\npairs of at most {} tokens", options.pair_tokens);
  return text;
}

/// Writes the answers of a pair together. A pair that is too long is left out.
class PairWriter {
 public:
  PairWriter(IndexedWriter& writer, std::int64_t most_tokens, std::int64_t& left_out)
      : writer_(writer), most_tokens_(most_tokens), left_out_(left_out) {}
  void add(const std::vector<std::int32_t>& ids, const std::vector<std::uint8_t>& mask) {
    // The first token of a document is never predicted.
    if (ids.size() < 2 || std::find(mask.begin() + 1, mask.end(), 1) == mask.end())
      throw EncodeError(std::string("the ") + (has_chosen_ ? "rejected" : "chosen") +
                        " answer has no token behind the prompt");
    if (!std::exchange(has_chosen_, !has_chosen_)) {
      chosen_ids_ = ids;
      chosen_mask_ = mask;
      return;
    }
    if (most_tokens_ > 0 && std::cmp_greater(chosen_ids_.size() + ids.size(), most_tokens_)) {
      ++left_out_;
      return;
    }
    writer_.add_document(chosen_ids_, chosen_mask_);
    writer_.add_document(ids, mask);
  }

 private:
  IndexedWriter& writer_;
  std::int64_t most_tokens_;
  std::int64_t& left_out_;
  bool has_chosen_ = false;
  std::vector<std::int32_t> chosen_ids_;
  std::vector<std::uint8_t> chosen_mask_;
};

// Thrown after another worker failed.
struct Stopped {};

// Encodes the unfinished parts on several threads.
class Workers {
 public:
  Workers(const PrepareOptions& options, const Tokenizer& tokenizer, const DocumentForm& form,
          const WorkFolder& folder, const std::vector<Part>& parts,
          std::vector<std::optional<PartRecord>>& records)
      : options_(options),
        tokenizer_(tokenizer),
        form_(form),
        folder_(folder),
        parts_(parts),
        records_(records) {
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (!records[i]) left_.push_back(i);
  }

  // Returns when all parts are done; rethrows the first error.
  void run(PrepareProgress progress, const std::function<void(const PrepareProgress&)>& report) {
    const auto start = std::chrono::steady_clock::now();
    const auto count = std::min(static_cast<std::size_t>(std::max(options_.workers, 1)), left_.size());
    running_ = count;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::seconds(1), [this] { return running_ == 0; })) {
      lock.unlock();
      progress.done_bytes = progress.started_bytes + static_cast<double>(bytes_.load());
      progress.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      report(progress);
      lock.lock();
    }
    lock.unlock();
    threads.clear();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() {
    try {
      const std::unique_ptr<Encoder> encoder =
          options_.chat ? tokenizer_.template_encoder() : tokenizer_.encoder(options_.specials);
      for (std::size_t i = next_++; i < left_.size(); i = next_++) encode_part(left_[i], *encoder);
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    done_.notify_one();
  }

  void encode_part(std::size_t index, Encoder& encoder) {
    IndexedWriter writer(folder_.stem(index), form_.type, form_.mask);
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> mask;
    PartRecord record;
    PairWriter pairs(writer, options_.pair_tokens, record.long_pairs);
    for (const DocumentRange& range : parts_[index].ranges) {
      read_documents(range, form_.line, [&](const InputDocument& document) {
        if (stop_) throw Stopped();
        bytes_ += static_cast<std::int64_t>(document.text.size());
        try {
          encode(document, encoder, ids, mask);
          if (form_.line.pairs) return pairs.add(ids, mask);
        } catch (const EncodeError& error) {
          throw base::data_error(place_in(range.path, document.offset, range.files) +
                                 ": the document that begins here cannot be encoded: " + error.what());
        }
        if (ids.empty()) ++record.empty_documents;
        else writer.add_document(ids, mask);
      });
    }
    record.totals = writer.finish();
    folder_.record(index, parts_[index].key, record);
    records_[index] = record;
  }

  // `ids` stays empty for a document without text.
  void encode(const InputDocument& document, Encoder& encoder, std::vector<std::int32_t>& ids,
              std::vector<std::uint8_t>& mask) const {
    ids = form_.before;
    std::vector<std::size_t> ends;
    if (document.learned != nullptr) encoder.encode_placed(document.text, ids, ends);
    else encoder.encode(document.text, ids);
    if (ids.size() == form_.before.size()) return ids.clear();
    if (document.learned != nullptr) {
      mark_tokens(ends, *document.learned, mask);
      mask.insert(mask.begin(), form_.before.size(), 0);
    }
    ids.insert(ids.end(), form_.after.begin(), form_.after.end());
    if (form_.end) ids.push_back(*form_.end);
    // The end of a completion counts in the loss; a token after a conversation does not.
    if (document.learned != nullptr) mask.resize(ids.size(), form_.line.chat ? 0 : 1);
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  const DocumentForm& form_;
  const WorkFolder& folder_;
  const std::vector<Part>& parts_;
  std::vector<std::optional<PartRecord>>& records_;
  std::vector<std::size_t> left_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t running_ = 0;
  std::exception_ptr error_;
};

Prepared totals_of(const std::vector<PartRecord>& records) {
  Prepared sum;
  for (const PartRecord& record : records) {
    sum.documents += record.totals.documents;
    sum.tokens += record.totals.tokens;
    if (!record.totals.mask_hash.empty()) sum.learned = sum.learned.value_or(0) + record.totals.learned;
    sum.empty_documents += record.empty_documents;
    sum.long_pairs += record.long_pairs;
  }
  sum.files = static_cast<std::int64_t>(records.size());
  return sum;
}

std::string dataset_json(const PrepareOptions& options, const Tokenizer& tokenizer, const DocumentForm& form,
                         const std::vector<InputFile>& inputs, const std::string& plan,
                         const std::vector<PartRecord>& records) {
  const Prepared sum = totals_of(records);
  nlohmann::ordered_json j;
  j["format"] = 1;
  j["plan"] = plan;
  j["tokenizer"] = {{"file", options.tokenizer},
                    {"kind", tokenizer.info().kind},
                    {"hash", tokenizer.info().hash},
                    {"vocab", tokenizer.info().vocab}};
  j["dtype"] = name_of(form.type);
  j["documents"] = sum.documents;
  j["tokens"] = sum.tokens;
  j["empty_documents"] = sum.empty_documents;
  j["before"] = form.before;
  j["after"] = form.after;
  if (form.end) j["after"].push_back(*form.end);
  j["special_text"] =
      tokenizer.info().special_text && options.specials == SpecialText::token ? "token" : "plain";
  if (options.chat) j["chat"] = name_of(*options.chat);
  j["loss_mask"] = form.mask == LossMask::written;
  if (options.pairs) j["pairs"] = true;
  if (sum.learned) j["learned_tokens"] = *sum.learned;
  j["files"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < records.size(); ++i) {
    const IndexedTotals& t = records[i].totals;
    j["files"].push_back({{"name", WorkFolder::name(i)},
                          {"documents", t.documents},
                          {"tokens", t.tokens},
                          {"bin_xxh3", t.bin_hash},
                          {"idx_xxh3", t.idx_hash}});
    if (!t.mask_hash.empty()) j["files"].back()["mask_xxh3"] = t.mask_hash;
  }
  j["sources"] = nlohmann::ordered_json::array();
  for (const InputFile& input : inputs)
    j["sources"].push_back({{"path", input.path}, {"bytes", input.stamp.bytes}});
  return to_text(j, 1) + "\n";
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Returns true if the same command made it already; throws if anything else is there.
bool is_complete(const std::string& out, const std::string& plan) {
  std::error_code error;
  if (!fs::exists(out, error) || (fs::is_directory(out, error) && fs::is_empty(out, error))) return false;
  const auto made = fs::is_directory(out, error) ? made_dataset(out) : std::nullopt;
  if (made && made->plan == plan && !made->broken.empty())
    throw base::data_error(made->broken +
                           ": this file of a finished data set is missing or has another size: " +
                           "remove the directory and run the command again");
  if (made && made->plan == plan) return true;
  throw base::data_error(
      out +
      ": it is there already, made of other inputs or by other options: give another --out, or "
      "remove it");
}

}  // namespace

Prepared prepare_data(const PrepareOptions& options,
                      const std::function<void(const PrepareProgress&)>& report) {
  if (options.out.empty()) throw base::spec_error("--out: it is empty: name the directory that is made");
  const std::string out = without_slash(options.out);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
  const DocumentForm form = form_of(options, *tokenizer);
  const std::vector<InputFile> inputs = list_inputs(options);
  const std::vector<Part> parts = make_parts(inputs, settings_of(options, *tokenizer, form), options.files);
  std::string keys;
  for (const Part& part : parts) keys += part.key;
  const std::string plan = xxh3_hex(std::as_bytes(std::span(keys)));

  PrepareProgress progress;
  for (const Part& part : parts) progress.total_bytes += static_cast<double>(part.bytes);
  Prepared done{.input_bytes = static_cast<std::int64_t>(progress.total_bytes)};
  if (is_complete(out, plan)) {
    done.complete_before = true;
    return done;
  }
  const WorkFolder folder(out);
  if (folder.finish_earlier(plan)) {
    done.complete_before = true;
    return done;
  }
  std::vector<std::optional<PartRecord>> records = folder.keep(parts);
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!records[i]) continue;
    ++kept;
    progress.started_bytes += static_cast<double>(parts[i].bytes);
  }
  Workers(options, *tokenizer, form, folder, parts, records).run(progress, report);

  std::vector<PartRecord> finished;
  for (const auto& record : records) finished.push_back(*record);
  const std::int64_t input_bytes = done.input_bytes;
  done = totals_of(finished);
  done.input_bytes = input_bytes;
  done.kept_files = kept;
  if (done.tokens == 0) {
    folder.keep({});
    throw base::data_error(options.inputs.front() + (options.inputs.size() > 1 ? ", ...: " : ": ") +
                           (done.long_pairs > 0
                                ? "all pairs of the inputs have more tokens than --pair-tokens allows"
                                : "there is no text in the inputs: all their documents are empty"));
  }
  if (done.learned == 0) {
    folder.keep({});
    throw base::data_error(options.inputs.front() + (options.inputs.size() > 1 ? ", ...: " : ": ") +
                           "no token counts in the loss: no conversation has a message of the assistant, or "
                           "every completion is empty");
  }
  folder.finish(dataset_json(options, *tokenizer, form, inputs, plan, finished));
  return done;
}

}  // namespace trainerd::io
