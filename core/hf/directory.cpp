#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/hf/config.h"
#include "core/hf/directory_files.h"
#include "core/hf/elements.h"
#include "core/hf/stacked_experts.h"
#include "core/hf/weight_source.h"
#include "io/checkpoint/safetensors.h"
#include "io/hash/hash.h"
#include "io/storage/storage.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

// A Hugging Face directory as a source of weights.

namespace trainerd::core::hf {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
constexpr const char* kScales = "_scale_inv";  // behind the name of an FP8 tensor
constexpr std::int64_t kScaleBlock = 128;
constexpr const char* kFp4Values = "_blocks";  // behind the name of experts in MXFP4
constexpr const char* kFp4Scales = "_scales";
constexpr std::size_t kShown = 8;  // maximum tensors of a kind in a message

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

class Directory final : public WeightSource {
 public:
  explicit Directory(const std::string& path);
  std::string outline() const override;
  std::string verify() const override;
  void read(const io::TensorSlice& box, std::span<std::byte> out) const override;

 private:
  struct Stored {
    std::size_t file = 0;
    Element element = Element::f32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  ///< offset in the file
    bool bytes = false;      ///< U8, of a format that its name says
  };
  struct File {
    std::string name;
    std::unique_ptr<io::StoredFile> open;
    std::string head_hash;  ///< hash of its header
  };
  /// Scales of an FP8 tensor: one for each block of 128 x 128 elements.
  struct BlockScales {
    std::int64_t columns = 0;  ///< of the tensor
    std::vector<float> values;

    /// Multiplies the tensor's elements from `element` on.
    void multiply(std::int64_t element, std::span<float> elements) const {
      const std::int64_t in_row = (columns + kScaleBlock - 1) / kScaleBlock;
      for (auto left = elements; !left.empty();) {
        const std::int64_t row = element / columns, column = element % columns;
        const std::int64_t of_block = std::min(kScaleBlock - column % kScaleBlock, columns - column);
        const auto run = std::min(left.size(), static_cast<std::size_t>(of_block));
        const float scale =
            values[static_cast<std::size_t>(row / kScaleBlock * in_row + column / kScaleBlock)];
        for (float& x : left.first(run)) x *= scale;
        left = left.subspan(run), element += static_cast<std::int64_t>(run);
      }
    }
  };
  static std::int64_t bytes_of(const Stored& stored) {
    std::int64_t bytes = size_of(stored.element);
    for (const std::int64_t size : stored.shape) bytes *= size;
    return bytes;
  }
  void open_files();
  void add_file(const std::string& name);
  void map_names(const SourceConfig& config);
  const std::string* stored_name(const std::string& family_name) const;
  std::map<std::int64_t, std::string> tensors_of(std::size_t file) const;
  void require_same_head() const;
  std::string scales_problem(const std::string& name, const Stored& stored) const;
  std::string fp4_problem(const MappedTensor& tensor, const std::string& name) const;
  std::vector<std::byte> bytes_of_expert(const std::string& name, std::int64_t expert) const;
  BlockScales scales_of(const std::string& name) const;
  void read_part(const MappedTensor& tensor, const TheirTensor& part, const io::TensorSlice& box,
                 std::span<std::byte> out) const;
  const ExpertPart& expert_part(const MappedTensor& tensor, const std::string& name, std::int64_t expert,
                                std::int64_t column, std::int64_t columns, kernels::DType dtype) const;
  void read_stacked(const MappedTensor& tensor, const std::string& name, const io::TensorSlice& box,
                    std::span<std::byte> out) const;

  std::unique_ptr<io::Storage> storage_;
  std::vector<File> files_;
  std::map<std::string, Stored> stored_;  // by name in the files
  std::set<std::string> odd_dtypes_;      // names of tensors of other dtypes
  std::vector<MappedTensor> mapped_;      // parallel to `tensors_`; part names are those in the files
  mutable std::mutex reading_;
  mutable ExpertPart last_;  // boxes that follow each other are often of one expert
};

Directory::Directory(const std::string& path) : storage_(io::open_storage(path)) {
  path_ = storage_->path_of("");
  origin_.from = path_;
  if (!storage_->exists("config.json"))
    throw base::checkpoint_error(path_ +
                                 ": there is no such directory, or it has no config.json: name the directory "
                                 "of a Hugging Face model, with every file of the model");
  origin_.config = io::read_text(*storage_, "config.json");
  if (storage_->exists("generation_config.json"))
    origin_.generation_config =
        checked_generation_config(*storage_, storage_->path_of("generation_config.json"));
  const SourceConfig config = read_config(origin_.config, storage_->path_of("config.json"));
  model_ = config.model;
  notes_ = config.notes;
  if (model_.positions == job::Positions::learned) longest_sequence_ = model_.seq_len;
  if (!tokenizer_files(path_).empty()) {
    tokenizer_ = path_;
    origin_.tokenizer = tokenizer_checksum(path_);
  }
  open_files();
  map_names(config);
}

void Directory::open_files() {
  for (const std::string& name : weight_files(*storage_)) add_file(name);
}

void Directory::add_file(const std::string& name) {
  const std::string path = storage_->path_of(name);
  if (!storage_->exists(name))
    throw base::checkpoint_error(path + ": " + kIndex +
                                 " names it, and it is not there: fetch every file of the model");
  File file{name, storage_->open(name), ""};
  std::vector<std::byte> head(static_cast<std::size_t>(std::min<std::int64_t>(8, file.open->bytes())));
  io::ForeignHeader header;
  try {
    file.open->read(0, head);
    head.resize(static_cast<std::size_t>(io::header_bytes(head, file.open->bytes())));
    file.open->read(0, head);
    header = io::parse_foreign_safetensors(head, file.open->bytes());
  } catch (const base::CheckpointError& e) {
    throw base::checkpoint_error(path + ": is damaged or was not fetched whole: " + e.what() +
                                 "; fetch it again");
  }
  file.head_hash = io::xxh3_hex(head);
  for (const io::ForeignTensor& tensor : header.tensors) {
    const auto element = element_of(tensor.dtype);
    if (!element) odd_dtypes_.insert(tensor.name);
    const Stored stored{files_.size(), element.value_or(Element::f32), tensor.shape,
                        header.data_offset + tensor.begin, tensor.dtype == "U8"};
    if (!stored_.emplace(tensor.name, stored).second)
      throw base::checkpoint_error(path + ": holds " + tensor.name + ", which another file holds too");
  }
  files_.push_back(std::move(file));
}

/// Models saved without their head have names without the first word.
const std::string* Directory::stored_name(const std::string& family_name) const {
  auto found = stored_.find(family_name);
  if (found == stored_.end()) found = stored_.find(family_name.substr(family_name.find('.') + 1));
  return found == stored_.end() ? nullptr : &found->first;
}

void Directory::map_names(const SourceConfig& config) {
  const std::string& family = config.family;
  std::set<std::string> used;
  std::vector<std::string> missing, wrong, unknown;
  for (MappedTensor& tensor : mapped_ = map_tensors(tensor_rules(family), model_)) {
    kernels::DType dtype = kernels::DType::bf16;
    for (TheirTensor& part : tensor.parts) {
      const std::string* name = stored_name(part.name);
      if (const std::string* blocks = stored_name(part.name + kFp4Values);
          name == nullptr && blocks != nullptr && tensor.stacked > 0 && tensor.shape.size() == 2) {
        part.name = blocks->substr(0, blocks->size() - std::string(kFp4Values).size());
        used.insert({*blocks, part.name + kFp4Scales});
        if (const std::string problem = fp4_problem(tensor, part.name); !problem.empty())
          wrong.push_back(problem);
        continue;
      }
      if (name == nullptr) {
        missing.push_back(part.name);
        continue;
      }
      used.insert(*name);
      part.name = *name;
      const Stored& stored = stored_.at(*name);
      if (stored.element == Element::f8) used.insert(*name + kScales);
      if (odd_dtypes_.contains(*name)) wrong.push_back(*name + " is none of F32, BF16, F16 and F8_E4M3");
      else if (stored.shape != tensor.their_shape(part))
        wrong.push_back(
            fmt::format("{} is {}, by config.json it is {}", *name, stored.shape, tensor.their_shape(part)));
      if (const std::string problem = scales_problem(*name, stored); !problem.empty())
        wrong.push_back(problem);
      if (held_in(stored.element) == kernels::DType::f32) dtype = kernels::DType::f32;
    }
    tensors_.push_back({tensor.name, dtype, tensor.shape});
  }
  for (const auto& [name, stored] : stored_) {
    const bool tied_head = model_.tie_embeddings && name == "lm_head.weight";  // compared by `verify`
    if (!used.contains(name) && !tied_head && !is_left_out(config, name)) unknown.push_back(name);
  }
  std::string problems;
  const auto add = [&](const std::vector<std::string>& names, const std::string& before,
                       const std::string& after) {
    if (!names.empty())
      problems += (problems.empty() ? "" : "\n") + path_ + ": " + before + some_of(names) + after;
  };
  add(missing, "tensors are missing: ", ": fetch every file of the model, and its own config.json");
  add(wrong, "tensors are not what config.json says: ", "");
  add(unknown, "holds tensors that " + family + " models do not have: ",
      ": the model is another one than config.json says, or is adapted; merge or remove them");
  if (!problems.empty()) throw base::checkpoint_error(problems);
}

std::string Directory::scales_problem(const std::string& name, const Stored& stored) const {
  if (stored.element != Element::f8) return "";
  const auto scales = stored_.find(name + kScales);
  std::vector<std::int64_t> blocks;
  for (const std::int64_t size : stored.shape) blocks.push_back((size + kScaleBlock - 1) / kScaleBlock);
  if (stored.shape.size() == 2 && scales != stored_.end() && scales->second.element == Element::f32 &&
      !odd_dtypes_.contains(scales->first) && scales->second.shape == blocks)
    return "";
  return name + " is in FP8, and has no " + kScales + " of F32 for each block of 128 x 128 elements";
}

std::string Directory::fp4_problem(const MappedTensor& tensor, const std::string& name) const {
  const std::int64_t blocks = tensor.columns() / kFp4Block;
  const std::vector<std::int64_t> scales{tensor.stacked, tensor.expert_rows(), blocks};
  std::vector<std::int64_t> values = scales;
  values.push_back(kFp4Block / 2);
  const auto is = [&](const char* end, const std::vector<std::int64_t>& shape) {
    const auto found = stored_.find(name + end);
    return found != stored_.end() && found->second.bytes && found->second.shape == shape;
  };
  if (tensor.columns() % kFp4Block == 0 && is(kFp4Values, values) && is(kFp4Scales, scales)) return "";
  return fmt::format("{} is in MXFP4, and has no {} and {} of U8, {} and {}", name, kFp4Values, kFp4Scales,
                     values, scales);
}

/// An expert's part of a tensor of bytes.
std::vector<std::byte> Directory::bytes_of_expert(const std::string& name, std::int64_t expert) const {
  const Stored& stored = stored_.at(name);
  std::int64_t count = 1;
  for (std::size_t i = 1; i < stored.shape.size(); ++i) count *= stored.shape[i];
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  files_[stored.file].open->read(stored.begin + expert * count, bytes);
  return bytes;
}

Directory::BlockScales Directory::scales_of(const std::string& name) const {
  const Stored& scales = stored_.at(name + kScales);
  BlockScales read{stored_.at(name).shape[1], {}};
  read.values.resize(static_cast<std::size_t>(bytes_of(scales)) / sizeof(float));
  files_[scales.file].open->read(scales.begin, std::as_writable_bytes(std::span(read.values)));
  return read;
}

std::string Directory::outline() const {
  io::Xxh3 hash;
  const auto add = [&](const std::string& text) { hash.update(std::as_bytes(std::span(text))); };
  add(origin_.config);
  for (const File& file : files_)
    add("\n" + file.name + " " + std::to_string(file.open->bytes()) + " " + file.head_hash);
  return hash.hex();
}

/// Tensors of a file with known values, by offset.
std::map<std::int64_t, std::string> Directory::tensors_of(std::size_t file) const {
  std::map<std::int64_t, std::string> tensors;
  for (const auto& [name, stored] : stored_)
    if (stored.file == file && !odd_dtypes_.contains(name) && bytes_of(stored) > 0)
      tensors[stored.begin] = name;
  return tensors;
}

std::string Directory::verify() const {
  io::Xxh3 hash;
  const std::string head = outline();
  hash.update(std::as_bytes(std::span(head)));
  std::vector<std::byte> chunk(kChunkBytes);
  for (std::size_t f = 0; f < files_.size(); ++f) {
    // Reads tensor by tensor, so that no value is split between two pieces.
    std::int64_t at = 0;
    const auto read_to = [&](std::int64_t end, const std::string& name, const Stored* tensor) {
      const std::int64_t begin = at;
      while (at < end) {
        const std::span<std::byte> part = std::span(chunk).first(
            static_cast<std::size_t>(std::min(static_cast<std::int64_t>(kChunkBytes), end - at)));
        files_[f].open->read(at, part);
        hash.update(part);
        if (const auto bad = tensor ? first_not_finite(tensor->element, part) : std::nullopt)
          not_finite(storage_->path_of(files_[f].name), name, (at - begin) / size_of(tensor->element) + *bad);
        at += static_cast<std::int64_t>(part.size());
      }
    };
    for (const auto& [begin, name] : tensors_of(f)) {
      const Stored& tensor = stored_.at(name);
      read_to(begin, "", nullptr);
      read_to(begin + bytes_of(tensor), name, &tensor);
    }
    read_to(files_[f].open->bytes(), "", nullptr);
  }
  require_same_head();
  return hash.hex();
}

/// A model with tied embeddings may still have a head in its files. It must equal the embedding then, because
/// programs differ on which one they use.
void Directory::require_same_head() const {
  const auto head = stored_.find("lm_head.weight");
  if (!model_.tie_embeddings || head == stored_.end()) return;
  const Stored& table = stored_.at(mapped_.front().parts.front().name);
  bool same = head->second.shape == table.shape && head->second.element == table.element;
  const std::int64_t bytes = same ? table.shape[0] * table.shape[1] * size_of(table.element) : 0;
  std::vector<std::byte> a(kChunkBytes), b(kChunkBytes);
  for (std::int64_t at = 0; same && at < bytes; at += static_cast<std::int64_t>(kChunkBytes)) {
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(kChunkBytes), bytes - at));
    files_[table.file].open->read(table.begin + at, std::span(a).first(count));
    files_[head->second.file].open->read(head->second.begin + at, std::span(b).first(count));
    same = std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin());
  }
  if (!same)
    throw base::checkpoint_error(
        path_ +
        ": config.json ties the head to the embedding, and lm_head.weight is not the "
        "embedding: set tie_word_embeddings to false, or remove lm_head.weight");
}

void Directory::read(const io::TensorSlice& box, std::span<std::byte> out) const {
  const MappedTensor& tensor = mapped_[index_of(box)];
  for (const TheirTensor& part : tensor.parts) read_part(tensor, part, box, out);
}

/// Reads the columns of an expert, or all of them, in `dtype`, unless they were the last that were read.
const ExpertPart& Directory::expert_part(const MappedTensor& tensor, const std::string& name,
                                         std::int64_t expert, std::int64_t column, std::int64_t columns,
                                         kernels::DType dtype) const {
  ExpertPart part{name, expert, column, columns, dtype};
  const std::int64_t rows = tensor.expert_rows(), size = kernels::size_of(dtype);
  const auto plain = stored_.find(name);
  part.by_rows = plain == stored_.end();
  if (part.by_rows) part.column = 0, part.columns = tensor.columns();
  if (part.is(last_)) return last_;
  part.values.resize(static_cast<std::size_t>(rows * part.columns * size));
  const Stored& stored = part.by_rows ? stored_.at(name + kFp4Values) : plain->second;
  std::optional<std::int64_t> bad;
  if (part.by_rows) {
    std::vector<float> wide(static_cast<std::size_t>(rows * part.columns));
    from_mxfp4(bytes_of_expert(name + kFp4Values, expert), bytes_of_expert(name + kFp4Scales, expert), wide);
    bad = convert(Element::f32, std::as_bytes(std::span(wide)), dtype, part.values);
  } else {
    const std::int64_t each = size_of(stored.element);
    std::vector<std::byte> raw(static_cast<std::size_t>(rows * columns * each));
    files_[stored.file].open->read(stored.begin + (expert * tensor.columns() + column) * rows * each, raw);
    bad = convert(stored.element, raw, dtype, part.values);
  }
  if (bad)
    not_finite(storage_->path_of(files_[stored.file].name), name, expert * rows * tensor.columns() + *bad);
  return last_ = std::move(part);
}

/// Reads the rows of `box`, expert by expert.
void Directory::read_stacked(const MappedTensor& tensor, const std::string& name, const io::TensorSlice& box,
                             std::span<std::byte> out) const {
  const bool vector = box.shape.size() == 1;
  const std::int64_t rows = tensor.expert_rows(), end = box.begin[0] + box.shape[0],
                     column = vector ? 0 : box.begin[1], columns = vector ? 1 : box.shape[1];
  const std::lock_guard lock(reading_);
  for (std::int64_t expert = box.begin[0] / rows; expert * rows < end; ++expert)
    place_expert(tensor, expert_part(tensor, name, expert, column, columns, box.dtype), box, out);
}

/// Reads the rows of `box` that lie in `part`.
void Directory::read_part(const MappedTensor& tensor, const TheirTensor& part, const io::TensorSlice& box,
                          std::span<std::byte> out) const {
  const std::int64_t first = std::max(box.begin[0], part.first_row),
                     end = std::min(box.begin[0] + box.shape[0], part.first_row + part.rows);
  const bool vector = box.shape.size() == 1;
  const std::int64_t column = vector ? 0 : box.begin[1], columns = vector ? 1 : box.shape[1];
  if (first >= end || columns == 0) return;
  if (tensor.stacked > 0) return read_stacked(tensor, part.name, box, out);
  const Stored& stored = stored_.at(part.name);
  const io::StoredFile& file = *files_[stored.file].open;
  const std::int64_t from_size = size_of(stored.element), to_size = kernels::size_of(box.dtype);
  std::vector<std::byte> raw, converted;
  BlockScales scales;
  if (stored.element == Element::f8) scales = scales_of(part.name);
  std::vector<float> scaled;
  // Reads `count` elements of the file, from `element` on, in the box's dtype.
  const auto fetch = [&](std::int64_t element, std::int64_t count, std::span<std::byte> to) {
    raw.resize(static_cast<std::size_t>(count * from_size));
    file.read(stored.begin + element * from_size, raw);
    Element kind = stored.element;
    if (kind == Element::f8) {
      scaled.resize(raw.size());
      convert(kind, raw, kernels::DType::f32, std::as_writable_bytes(std::span(scaled)));
      scales.multiply(element, scaled);
      raw.resize(2 * scaled.size());
      convert(Element::f32, std::as_bytes(std::span(scaled)), kernels::DType::bf16, raw);
      kind = Element::bf16;
    }
    if (const auto bad = convert(kind, raw, box.dtype, to))
      not_finite(storage_->path_of(files_[stored.file].name), part.name, element + *bad);
  };
  const auto at = [&](std::int64_t row, std::int64_t in_row) {
    return static_cast<std::size_t>(((row - box.begin[0]) * columns + in_row) * to_size);
  };
  const std::int64_t rows = end - first, local = first - part.first_row;
  if (tensor.transposed) {
    converted.resize(static_cast<std::size_t>(rows * to_size));
    for (std::int64_t c = 0; c < columns; ++c) {
      fetch((column + c) * part.rows + local, rows, converted);
      for (std::int64_t r = 0; r < rows; ++r)
        std::copy_n(converted.begin() + r * to_size, to_size,
                    out.begin() + static_cast<std::ptrdiff_t>(at(first + r, c)));
    }
  } else if (columns == tensor.columns()) {
    fetch(local * columns, rows * columns,
          out.subspan(at(first, 0), static_cast<std::size_t>(rows * columns * to_size)));
  } else {
    for (std::int64_t r = 0; r < rows; ++r)
      fetch((local + r) * tensor.columns() + column, columns,
            out.subspan(at(first + r, 0), static_cast<std::size_t>(columns * to_size)));
  }
}

}  // namespace

std::unique_ptr<WeightSource> open_directory(const std::string& path) {
  return std::make_unique<Directory>(path);
}

}  // namespace trainerd::core::hf
