#include "io/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using kernels::DType;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxJsonBytes = 100'000'000;  // the limit of the format's reference implementation
constexpr std::int64_t kAlignment = 64;
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, const char*>, 6> kDtypes{{{DType::f32, "F32"},
                                                                {DType::bf16, "BF16"},
                                                                {DType::i32, "I32"},
                                                                {DType::f64, "F64"},
                                                                {DType::u8, "U8"},
                                                                {DType::f16, "F16"}}};

const char* word_of(DType dtype) {
  for (const auto& [type, word] : kDtypes)
    if (type == dtype) return word;
  return "?";
}

DType parse_dtype(const std::string& word) {
  for (const auto& [type, known] : kDtypes)
    if (word == known) return type;
  throw JsonError("dtype \"" + word + "\" is none of F32, BF16, I32, F64, U8, F16");
}

bool is_padding(const StoredTensor& tensor) { return tensor.name.starts_with(kPaddingPrefix); }

template <class Tensor>
void parse_place(const nlohmann::json& entry, Tensor& tensor) {
  tensor.shape = sizes_member(entry, "shape");
  const std::vector<std::int64_t> range = sizes_member(entry, "data_offsets");
  if (range.size() != 2 || range[1] < range[0]) throw JsonError("\"data_offsets\" is not a begin and an end");
  tensor.begin = range[0];
  tensor.end = range[1];
}

void check_bytes(DType as_large, std::span<const std::int64_t> shape, std::int64_t bytes) {
  if (tensor_bytes(as_large, shape) != bytes)
    throw JsonError("the shape needs " + std::to_string(tensor_bytes(as_large, shape)) +
                    " bytes, \"data_offsets\" span " + std::to_string(bytes));
}

void parse_entry(const nlohmann::json& entry, StoredTensor& tensor) {
  tensor.dtype = parse_dtype(string_member(entry, "dtype"));
  parse_place(entry, tensor);
  check_bytes(tensor.dtype, tensor.shape, tensor.end - tensor.begin);
}

void parse_entry(const nlohmann::json& entry, ForeignTensor& tensor) {
  tensor.dtype = string_member(entry, "dtype");
  parse_place(entry, tensor);
  for (const auto& [type, word] : kDtypes)
    if (tensor.dtype == word) check_bytes(type, tensor.shape, tensor.end - tensor.begin);
}

/// A parsed header: its tensors and the metadata under the format's special key.
template <class Tensor>
struct Parsed {
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;
};

std::string quoted(const std::string& text) { return to_text(nlohmann::ordered_json(text)); }

/// Appends `,"name":{...}`. Written as text for speed: a header has thousands of entries, and a plan makes a
/// header for each rank that it records.
void append_entry(std::string& text, const StoredTensor& tensor) {
  text += (text.size() > 1 ? "," : "") + quoted(tensor.name) + ":{\"dtype\":\"" + word_of(tensor.dtype) +
          "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    text += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
  text += "],\"data_offsets\":[" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]}";
}

}  // namespace

std::int64_t tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = kernels::size_of(dtype);
  bool overflows = false, empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) throw base::checkpoint_error("a tensor's shape has a negative size");
    empty |= size == 0;
    overflows |= size != 0 && __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (overflows) throw base::checkpoint_error("a tensor's shape has more than 2^63 bytes");
  return empty ? 0 : bytes;
}

const StoredTensor* SafetensorsHeader::find(const std::string& name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&name](const StoredTensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t header_bytes(std::span<const std::byte> first8, std::int64_t file_bytes) {
  std::uint64_t length = 0;
  if (std::cmp_less(first8.size(), kLengthBytes) || file_bytes < kLengthBytes)
    throw base::checkpoint_error("safetensors: the file is shorter than its 8-byte length field");
  std::memcpy(&length, first8.data(), sizeof(length));
  if (length < 2 || length > static_cast<std::uint64_t>(std::min(kMaxJsonBytes, file_bytes - kLengthBytes)))
    throw base::checkpoint_error("safetensors: the length field says a header of " + std::to_string(length) +
                                 " bytes, in a file of " + std::to_string(file_bytes));
  return kLengthBytes + static_cast<std::int64_t>(length);
}

namespace {

template <class Tensor>
Parsed<Tensor> parse_header(std::span<const std::byte> head, std::int64_t file_bytes) {
  Parsed<Tensor> header;
  header.data_offset = header_bytes(head, file_bytes);
  if (std::cmp_less(head.size(), header.data_offset))
    throw base::checkpoint_error("safetensors: the file ends inside its header");
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<std::size_t>(header.data_offset - kLengthBytes));
  std::string at = "header";  // position for error messages
  try {
    const nlohmann::json json = parse_json(text);
    if (!json.is_object()) throw JsonError("not an object");
    for (const auto& [name, entry] : json.items()) {
      at = name;
      if (name == kMetadata) {
        header.metadata = text_map(json, kMetadata);
        continue;
      }
      header.tensors.emplace_back().name = name;
      parse_entry(entry, header.tensors.back());
    }
  } catch (const JsonError& e) {
    throw base::checkpoint_error("safetensors: " + at + ": " + e.what());
  } catch (const base::CheckpointError& e) {
    throw base::checkpoint_error("safetensors: " + at + ": " + e.what());
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::int64_t next = 0;
  for (const Tensor& tensor : header.tensors) {
    if (tensor.begin != next)
      throw base::checkpoint_error("safetensors: " + tensor.name + " begins at " +
                                   std::to_string(tensor.begin) +
                                   (tensor.begin < next ? ", inside" : ", not at the end of") +
                                   " the tensor before it, which ends at " + std::to_string(next));
    next = tensor.end;
  }
  if (next != file_bytes - header.data_offset)
    throw base::checkpoint_error("safetensors: the tensors have " + std::to_string(next) +
                                 " bytes, the file has " + std::to_string(file_bytes - header.data_offset) +
                                 " after its header");
  return header;
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, std::int64_t file_bytes) {
  Parsed<StoredTensor> parsed = parse_header<StoredTensor>(head, file_bytes);
  std::erase_if(parsed.tensors, is_padding);
  return {std::move(parsed.tensors), std::move(parsed.metadata), parsed.data_offset};
}

ForeignHeader parse_foreign_safetensors(std::span<const std::byte> head, std::int64_t file_bytes) {
  Parsed<ForeignTensor> parsed = parse_header<ForeignTensor>(head, file_bytes);
  return {std::move(parsed.tensors), parsed.data_offset};
}

SafetensorsLayout lay_out_safetensors(std::vector<StoredTensor> tensors,
                                      const std::map<std::string, std::string>& metadata, Gaps gaps) {
  std::string text = "{";
  if (!metadata.empty()) text += quoted(kMetadata) + ":" + to_text(metadata);
  std::set<std::string> names;
  std::int64_t next = 0, paddings = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == kMetadata || is_padding(tensor) || !names.insert(tensor.name).second)
      throw base::checkpoint_error("safetensors: a tensor cannot be called " + tensor.name +
                                   ": the name is taken");
    const std::int64_t gap = gaps == Gaps::none ? 0 : (kAlignment - next % kAlignment) % kAlignment;
    if (gap != 0) {
      append_entry(text, {.name = kPaddingPrefix + std::to_string(paddings++),
                          .dtype = DType::u8,
                          .shape = {gap},
                          .begin = next,
                          .end = next + gap});
      next += gap;
    }
    tensor.begin = next;
    if (__builtin_add_overflow(next, tensor_bytes(tensor.dtype, tensor.shape), &tensor.end) ||
        tensor.end > INT64_MAX / 2)
      throw base::checkpoint_error("safetensors: " + tensor.name + " ends beyond 2^62 bytes");
    next = tensor.end;
    append_entry(text, tensor);
  }
  text += "}";
  const auto unpadded = kLengthBytes + static_cast<std::int64_t>(text.size());
  text.append(static_cast<std::size_t>((kAlignment - unpadded % kAlignment) % kAlignment), ' ');
  const std::uint64_t length = text.size();
  SafetensorsLayout layout;
  layout.header.resize(kLengthBytes + text.size());
  std::memcpy(layout.header.data(), &length, sizeof(length));
  std::memcpy(layout.header.data() + kLengthBytes, text.data(), text.size());
  layout.tensors = std::move(tensors);
  layout.file_bytes = static_cast<std::int64_t>(layout.header.size()) + next;
  return layout;
}

}  // namespace trainerd::io
