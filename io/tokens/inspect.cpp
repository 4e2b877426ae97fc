#include "io/tokens/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "io/text/json.h"
#include "io/text/text.h"
#include "io/tokens/mask_files.h"
#include "io/tokens/packing.h"
#include "io/tokens/samples.h"
#include "io/tokens/source_files.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kListedFiles = 10;
constexpr std::size_t kFirstLineBytes = 100;
constexpr std::int64_t kFirstTokens = 64;

struct Description {
  SourceFile file;
  IdScan ids;
  MaskScan mask;
  std::string first_line;
  std::vector<std::int64_t> document_tokens;  ///< per document, if there is an index
};

// Returns the start of the first line. Control characters and non-ASCII bytes are shown as \x.. for
// terminals.
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto c = static_cast<unsigned char>(byte);
    if (c == '\n' || text.size() >= kFirstLineBytes) break;
    text += (c >= 0x20 && c < 0x7f) ? std::string(1, static_cast<char>(c))
            : c == '\r'             ? ""
                                    : fmt::format("\\x{:02x}", c);
  }
  return text;
}

Description describe_file(const std::string& path, const InspectOptions& options) {
  const std::vector<std::byte> head = head_of_file(path, options.files);
  DataOptions data;
  data.format = format_by_head(path, head, options);
  data.dtype = options.dtype;
  Description d{.file = open_source_file(path, data, options.vocab, options.files),
                .ids = {},
                .mask = {},
                .first_line = {},
                .document_tokens = {}};
  if (data.format == DataFormat::text) d.first_line = printable(head);
  else find_mask(d.file);
  if (d.file.layout.index)
    each_document(*d.file.layout.index,
                  [&d](const Document& document) { d.document_tokens.push_back(document.tokens); });
  return d;
}

// Scans the ids and masks of each file, whole or in samples.
void scan_files(std::vector<Description>& described, const InspectOptions& options) {
  std::vector<SourceFile> files;
  std::vector<std::int64_t> sizes;
  for (const Description& d : described) {
    files.push_back(d.file);
    sizes.push_back(d.file.bytes);
  }
  const std::vector<DataBlock> blocks = options.all ? all_blocks(sizes) : sample_blocks(sizes);
  std::vector<IdScan> scans(blocks.size());
  read_blocks(files, blocks, options.threads, [&](std::size_t i, std::span<const std::byte> bytes) {
    scans[i] = scan_ids(files[blocks[i].file], blocks[i].offset, bytes, options.vocab);
  });
  for (std::size_t i = 0; i < blocks.size(); ++i) add(described[blocks[i].file].ids, scans[i]);
  const std::vector<MaskScan> masks =
      scan_masks(files, options.all ? MaskReading::whole : MaskReading::samples, options.threads);
  for (std::size_t i = 0; i < files.size(); ++i) described[i].mask = masks[i];
}

std::string largest_text(const IdScan& ids, std::int64_t tokens) {
  if (tokens == 0) return "none: it is empty";
  std::string text = fmt::format("{} (vocab of at least {})", ids.largest, std::uint64_t{ids.largest} + 1);
  if (ids.tokens < tokens) text += fmt::format(" of {} ids in samples; --all reads all of them", ids.tokens);
  return text;
}

// Text like "37.5% of tokens count"; empty if no file has a mask.
std::string masked_text(const std::vector<Description>& files) {
  MaskScan sum;
  std::int64_t tokens = 0, masked = 0;
  for (const Description& d : files) {
    if (d.file.mask.empty()) continue;
    ++masked;
    tokens += d.file.layout.tokens;
    add(sum, d.mask);
  }
  if (masked == 0) return "";
  std::string text = share_text(sum);
  if (sum.tokens < tokens) text += fmt::format(", of {} in samples; --all reads all of them", sum.tokens);
  if (std::cmp_less(masked, files.size()))
    text += fmt::format(" ({} of {} files have one)", masked, files.size());
  return text;
}

/// Percentiles by nearest rank.
struct Lengths {
  std::int64_t min, median, p99, max;
};
Lengths lengths_of(std::vector<std::int64_t> lengths) {
  const auto at = [&lengths](double share) {
    const auto rank = static_cast<std::ptrdiff_t>(std::ceil(share * static_cast<double>(lengths.size())));
    const auto nth = lengths.begin() + std::max<std::ptrdiff_t>(1, rank) - 1;
    std::nth_element(lengths.begin(), nth, lengths.end());
    return *nth;
  };
  return {at(0), at(0.5), at(0.99), at(1)};
}

// Text like "98.70% of the places of 1234 samples count, 12 documents are cut".
std::string fullness_text(std::int64_t predicted, std::int64_t samples, std::int64_t seq_len,
                          std::int64_t cut) {
  const double places = static_cast<double>(samples) * static_cast<double>(seq_len);
  return fmt::format("{:.2f}% of the places of {} samples count, {} documents are cut",
                     places > 0 ? 100 * static_cast<double>(predicted) / places : 0.0, samples, cut);
}

// For concatenated documents. With attention inside documents the first token of each does not count.
std::string concatenated_text(const std::vector<std::int64_t>& lengths, std::int64_t seq_len) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t samples = std::max<std::int64_t>(0, tokens - 1) / seq_len;
  std::int64_t begin = 0, cut = 0, predicted = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t end = std::min(begin + length, samples * seq_len + 1);
    predicted += std::max<std::int64_t>(0, end - begin - 1);
    if (length > 1 && begin / seq_len != (begin + length - 2) / seq_len) ++cut;
    begin += length;
  }
  return fullness_text(predicted, samples, seq_len, cut);
}

std::string packed_text(const std::vector<std::int64_t>& lengths, std::int64_t seq_len) {
  const PackedSequences packed(
      [&lengths](const PackedSequences::Visit& visit) {
        std::int64_t begin = 0;
        for (const std::int64_t length : lengths) visit(std::exchange(begin, begin + length), length);
      },
      {.seq_len = seq_len});
  return fullness_text(packed.predicted(), packed.count(), seq_len, packed.cut_documents());
}

// Returns the first tokens of the first non-empty document.
std::vector<std::int32_t> first_tokens(const std::vector<Description>& files) {
  for (const Description& d : files) {
    if (d.file.layout.tokens == 0) continue;
    std::int64_t count = std::min(d.file.layout.tokens, kFirstTokens);
    for (const std::int64_t length : d.document_tokens) {
      if (length == 0) continue;
      count = std::min(count, length);
      break;
    }
    return read_ids(d.file, count);
  }
  return {};
}

/// Output lines, and the same facts as a JSON object.
class Report {
 public:
  explicit Report(const std::string& path) : text_(path + "\n") { json_["path"] = path; }
  void line(const char* name, const std::string& value) { text_ += fmt::format("  {:<16}{}\n", name, value); }
  template <class Value>
  void fact(const char* name, const char* key, const Value& value) {
    line(name, fmt::format("{}", value));
    json_[key] = value;
  }
  void shown(const ShownLine& shown) {
    line(shown.name.c_str(), shown.text);
    std::visit([&](const auto& value) { json_[shown.key] = value; }, shown.value);
  }
  nlohmann::ordered_json& json() { return json_; }
  std::string& text() { return text_; }

 private:
  std::string text_;
  nlohmann::ordered_json json_;
};

void add_documents(Report& out, const std::vector<std::int64_t>& lengths, std::int64_t seq_len) {
  out.fact("documents", "documents", lengths.size());
  if (!lengths.empty()) {
    const Lengths l = lengths_of(lengths);
    out.line("their lengths",
             fmt::format("min {}, median {}, p99 {}, max {} tokens", l.min, l.median, l.p99, l.max));
    out.json()["document_lengths"] = {{"min", l.min}, {"median", l.median}, {"p99", l.p99}, {"max", l.max}};
  }
  if (seq_len == 0) return;
  out.line("samples", fmt::format("of seq_len {}, with attention inside documents", seq_len));
  const std::string concatenated = concatenated_text(lengths, seq_len),
                    packed = packed_text(lengths, seq_len);
  out.line("  concatenated", concatenated);
  out.line("  best_fit", packed);
  out.json()["samples"] = {{"seq_len", seq_len}, {"concatenated", concatenated}, {"best_fit", packed}};
}

void list_files_of(Report& out, const std::vector<Description>& files, bool mixed) {
  for (std::size_t i = 0; i < std::min(files.size(), kListedFiles); ++i) {
    const Description& d = files[i];
    out.text() += fmt::format("    {:>12} tokens  {}{}\n", d.file.layout.tokens, d.file.path,
                              mixed ? fmt::format(" ({})", d.file.layout.format) : "");
    if (!d.first_line.empty()) out.text() += fmt::format("    {:>12}         {}\n", "", d.first_line);
  }
  if (files.size() > kListedFiles)
    out.text() += fmt::format("    ... and {} more\n", files.size() - kListedFiles);
}

Report report(const std::string& path, const std::vector<Description>& files, const InspectOptions& options) {
  std::int64_t tokens = 0, bytes = 0;
  bool documents = false;
  std::vector<std::int64_t> lengths;
  IdScan ids;
  std::vector<SourceFile> sources;
  for (const Description& d : files) {
    documents |= d.file.layout.index.has_value();
    lengths.insert(lengths.end(), d.document_tokens.begin(), d.document_tokens.end());
    tokens += d.file.layout.tokens;
    bytes += d.file.bytes;
    add(ids, d.ids);
    sources.push_back(d.file);
  }
  const auto differs = [&files](const Description& d) {
    return !d.file.layout.is_alike(files[0].file.layout);
  };
  const bool mixed = std::any_of(files.begin(), files.end(), differs);
  const bool text = files[0].file.layout.kind == TokenLayout::Kind::text;
  Report out(path);
  if (files.size() > 1) out.line("files", std::to_string(files.size()));
  out.json()["files"] = files.size();
  out.fact("format", "format", std::string(mixed ? "mixed (see below)" : files[0].file.layout.format));
  out.fact("tokens", "tokens", tokens);
  if (documents) add_documents(out, lengths, options.seq_len);
  if (!mixed) out.fact("bytes per token", "bytes_per_token", files[0].file.layout.token_bytes);
  out.line("size", fmt::format("{} ({} bytes)", short_bytes(bytes), bytes));
  out.json()["bytes"] = bytes;
  out.line("largest id", largest_text(ids, tokens));
  if (tokens > 0) out.json()["largest_id"] = ids.largest;
  out.json()["ids_read"] = ids.tokens;
  if (const std::string masked = masked_text(files); !masked.empty())
    out.fact("loss mask", "loss_mask", masked);
  if (options.show && !text)
    for (const ShownLine& shown : options.show(dataset_tokenizer(sources), first_tokens(files)))
      out.shown(shown);
  if (files.size() > 1) list_files_of(out, files, mixed);
  else if (!files[0].first_line.empty()) out.fact("first line", "first_line", files[0].first_line);
  return out;
}

}  // namespace

std::vector<std::byte> head_of_file(const std::string& path, const DataFiles& from) {
  const DataFile file = from.open(path);
  if (!file) throw base::data_error(path + ": cannot be opened: " + base::errno_text(ENOENT));
  std::vector<std::byte> head(static_cast<std::size_t>(kLayoutHeadBytes));
  head.resize(static_cast<std::size_t>(file.read(0, head)));
  return head;
}

DataFormat format_by_head(const std::string& path, std::span<const std::byte> head,
                          const InspectOptions& options) {
  if (has_token_magic(head)) return DataFormat::tokens;
  if (options.format) return *options.format;
  return options.dtype != TokenType::automatic || path.ends_with(".bin") ? DataFormat::tokens
                                                                         : DataFormat::text;
}

Inspection inspect_data(const std::string& path, const InspectOptions& options) {
  base::check(options.format != DataFormat::synthetic, "synthetic data has no files to look at");
  Inspection inspection;
  std::vector<Description> described;
  // A Megatron index is read together with its data, whatever format the other files have.
  const DataFiles& from = options.files;
  for (const ListedFile& listed :
       list_data({megatron_data_path(path, from)}, options.format.value_or(DataFormat::tokens), from)) {
    try {
      described.push_back(describe_file(listed.path, options));
    } catch (const base::DataError& error) {
      inspection.problems.emplace_back(error.what());
    }
  }
  if (described.empty()) {
    std::string all;
    for (const std::string& problem : inspection.problems) all += (all.empty() ? "" : "\n") + problem;
    throw base::data_error(all);
  }
  scan_files(described, options);
  const bool documents = std::any_of(described.begin(), described.end(),
                                     [](const Description& d) { return d.file.layout.index.has_value(); });
  if (options.seq_len > 0 && !documents)
    inspection.problems.push_back(
        path + ": --seq-len: no file says where its documents begin, so nothing is packed");
  for (const Description& d : described) {
    std::string problem = ids_problem(d.file, d.ids, options.vocab);
    if (d.ids.outside > 1) problem += fmt::format(" ({} such ids in all that was read)", d.ids.outside);
    if (!problem.empty()) inspection.problems.push_back(std::move(problem));
    if (std::string wrong = mask_problem(d.file.mask, d.mask); !wrong.empty())
      inspection.problems.push_back(std::move(wrong));
  }
  Report found = report(path, described, options);
  inspection.text = std::move(found.text());
  inspection.json = to_text(found.json(), 2) + "\n";
  return inspection;
}

}  // namespace trainerd::io
