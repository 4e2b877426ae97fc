#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/hf/adapters.h"
#include "core/hf/config.h"
#include "core/hf/convert.h"
#include "core/hf/elements.h"
#include "core/hf/families.h"
#include "core/hf/tensor_files.h"
#include "core/hf/weight_source.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/safetensors.h"
#include "io/storage/new_directory.h"
#include "io/storage/storage.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

/// One of their tensors: rows of one of ours.
struct Piece {
  MappedTensor tensor;
  TheirTensor part;
  Element element = Element::f32;

  /// Dtype for reading.
  kernels::DType dtype() const { return held_in(element); }
};

/// Converts values from the dtype for reading to the type for writing.
OutTensor::Take narrowing(const std::string& name, Element element, const OutTensor::Take& take) {
  if (element != Element::f16) return take;
  return [&take, name, done = std::int64_t{0}](std::span<const std::byte> bytes) mutable {
    const std::span values(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    std::vector<std::byte> half(values.size() * 2);
    if (const auto bad = convert_to_half(values, half))
      throw base::checkpoint_error(
          fmt::format("{}: value {} is {}, and fp16 holds 65504 at most: export by --dtype bf16 or fp32",
                      name, done + *bad, values[static_cast<std::size_t>(*bad)]));
    done += static_cast<std::int64_t>(values.size());
    take(half);
  };
}

io::TensorSlice rows_of(const Piece& piece, std::int64_t first, std::int64_t rows) {
  io::TensorSlice box{.name = piece.tensor.name,
                      .dtype = piece.dtype(),
                      .logical_shape = piece.tensor.shape,
                      .begin = std::vector<std::int64_t>(piece.tensor.shape.size(), 0),
                      .shape = piece.tensor.shape};
  box.begin[0] = first;
  box.shape[0] = rows;
  return box;
}

/// The experts of a stacked tensor, one after the other: [columns, rows] each, or [rows] of biases.
void give_stacked(const WeightSource& source, const Piece& piece, const OutTensor::Take& take) {
  const MappedTensor& tensor = piece.tensor;
  const std::int64_t columns = tensor.columns(), rows = tensor.expert_rows(),
                     size = kernels::size_of(piece.dtype());
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * columns * size)), turned(bytes.size());
  for (std::int64_t expert = 0; expert < tensor.stacked; ++expert) {
    source.read(rows_of(piece, expert * rows, rows), bytes);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        std::copy_n(bytes.begin() + (r * columns + c) * size, size,
                    turned.begin() + (c * rows + tensor.their_row(r)) * size);
    take(turned);
  }
}

void give_piece(const WeightSource& source, const Piece& piece, const OutTensor::Take& out) {
  const OutTensor::Take take = narrowing(piece.part.name, piece.element, out);
  const std::int64_t columns = piece.tensor.columns(), size = kernels::size_of(piece.dtype()),
                     rows = piece.part.rows, row_bytes = columns * size;
  std::vector<std::byte> bytes;
  if (piece.tensor.stacked > 0) return give_stacked(source, piece, take);
  if (piece.tensor.transposed) {
    bytes.resize(static_cast<std::size_t>(rows * row_bytes));
    source.read(rows_of(piece, piece.part.first_row, rows), bytes);
    std::vector<std::byte> turned(bytes.size());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        std::copy_n(bytes.begin() + (r * columns + c) * size, size, turned.begin() + (c * rows + r) * size);
    return take(turned);
  }
  const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row);
    bytes.resize(static_cast<std::size_t>(count * row_bytes));
    source.read(rows_of(piece, piece.part.first_row + row, count), bytes);
    take(bytes);
  }
}

std::string file_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string index_text(const std::vector<OutTensor>& tensors, const std::vector<TensorFile>& files) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::int64_t bytes = 0;
  for (const TensorFile& file : files)
    for (std::size_t i = file.first; i < file.first + file.count; ++i) {
      map[tensors[i].name] = file.info.file;
      bytes += element_count(tensors[i].shape) * size_of(tensors[i].element);
    }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = std::move(map);
  return io::to_text(index, 2) + "\n";
}

/// Checks the tokenizer files against the checkpoint's record. Throws CheckpointError.
template <class Source>
void require_tokenizer(const Source& source) {
  const std::string remedy = "; bring its tokenizer's files to " + source.path() + "/" + kCompanionFolder +
                             ", or leave them out with --no-tokenizer";
  if (source.tokenizer().empty())
    throw base::checkpoint_error(source.path() +
                                 ": the model has a tokenizer, and its files are neither in the checkpoint "
                                 "nor in the output directory of its run" +
                                 remedy);
  if (tokenizer_checksum(source.tokenizer()) != source.origin().tokenizer)
    throw base::checkpoint_error(source.tokenizer() + ": is not the tokenizer that the model came with" +
                                 remedy);
}

/// Copies the files and returns their names.
std::string copied_tokenizer(const std::string& from, const std::string& to) {
  std::string names;
  for (const std::string& name : tokenizer_files(from)) names += (names.empty() ? "" : ", ") + name;
  copy_tokenizer(tokenizer_files_in(from), to);
  return names;
}

/// The A or B of one projection: rows of a checkpoint's tensor.
OutTensor adapter_tensor(const std::string& name, std::vector<std::int64_t> shape,
                         std::span<const float> values, Element element) {
  return {name, element, std::move(shape), [name, values, element](const OutTensor::Take& take) {
            if (element == Element::f16) return narrowing(name, element, take)(std::as_bytes(values));
            std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(element)));
            convert(Element::f32, std::as_bytes(values), held_in(element), bytes);
            take(bytes);
          }};
}

/// Adapters in PEFT's form.
struct PeftAdapters {
  std::vector<OutTensor> tensors;    ///< base_model.model.MODULE.lora_A.weight, and lora_B
  std::vector<std::string> targets;  ///< last words of module names, without duplicates
  bool transposed = false;           ///< the base's weights are [inputs, outputs]
};

/// `all` must outlive the result.
PeftAdapters peft_adapters(const AdapterCheckpoint& source, const std::string& family,
                           const std::vector<WeightAdapters>& all, Element element) {
  job::ModelOptions plain = source.model();
  plain.lora = {};
  std::map<std::string, MappedTensor> mapped;
  for (MappedTensor& tensor : map_tensors(tensor_rules(family), plain))
    mapped[tensor.name] = std::move(tensor);
  const std::int64_t rank = source.model().lora.rank;
  PeftAdapters peft;
  // Adds the adapters of `part`: R rows of A and the part's rows of B, from the given rows on.
  const auto add = [&](const WeightAdapters& adapters, const TheirTensor& part, std::int64_t row_of_a,
                       std::int64_t row_of_b) {
    const std::string module = part.name.substr(0, part.name.rfind('.'));
    const std::string target = module.substr(module.rfind('.') + 1);
    if (std::find(peft.targets.begin(), peft.targets.end(), target) == peft.targets.end())
      peft.targets.push_back(target);
    const auto slice = [](const std::vector<float>& values, std::int64_t first, std::int64_t count) {
      return std::span(values).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    };
    const std::int64_t columns = adapters.columns;
    peft.tensors.push_back(adapter_tensor("base_model.model." + module + ".lora_A.weight", {rank, columns},
                                          slice(adapters.a, row_of_a * columns, rank * columns), element));
    peft.tensors.push_back(adapter_tensor("base_model.model." + module + ".lora_B.weight", {part.rows, rank},
                                          slice(adapters.b, row_of_b * rank, part.rows * rank), element));
  };
  for (const WeightAdapters& adapters : all) {
    const MappedTensor& weight = mapped.at(adapters.weight);
    peft.transposed = peft.transposed || weight.transposed;
    // If their projections are separate, each one gets the shared A.
    for (std::size_t i = 0; adapters.whole && i < weight.parts.size(); ++i)
      add(adapters, weight.parts[i], 0, weight.parts[i].first_row);
    std::int64_t row_of_a = 0, row_of_b = 0;
    for (std::size_t i = 0; !adapters.whole && i < adapters.segments.size(); ++i) {
      if (weight.parts.size() < adapters.rows.size())
        throw base::checkpoint_error(
            source.path() + ": " + family + " models have one module for " + weight.parts.front().name +
            ", and its projections were adapted apart, which PEFT cannot load: train "
            "with lora.targets qkv_proj and gate_up_proj, or export with --merge");
      const TheirTensor& part = weight.parts.at(adapters.segments[i]);
      add(adapters, part, row_of_a, row_of_b);
      row_of_a += rank, row_of_b += part.rows;
    }
  }
  return peft;
}

std::string adapter_config(const AdapterCheckpoint& source, const PeftAdapters& peft) {
  const job::LoraOptions& lora = source.model().lora;
  nlohmann::ordered_json config;
  config["base_model_name_or_path"] = source.origin().from;
  config["bias"] = "none";
  config["fan_in_fan_out"] = peft.transposed;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  if (lora.alpha == std::floor(lora.alpha)) config["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  else config["lora_alpha"] = lora.alpha;
  config["lora_dropout"] = 0.0;
  config["modules_to_save"] = nullptr;
  config["peft_type"] = "LORA";
  config["r"] = lora.rank;
  config["target_modules"] = peft.targets;
  config["task_type"] = "CAUSAL_LM";
  config["use_dora"] = false;
  config["use_rslora"] = false;
  return io::to_text(config, 2) + "\n";
}

Exported export_adapters(const AdapterCheckpoint& source, const ExportOptions& options) {
  job::ModelOptions plain = source.model();
  plain.lora = {};
  const std::string family = family_of(plain, source.origin().config);
  const bool tokenizer = options.tokenizer && !source.origin().tokenizer.empty();
  if (tokenizer) require_tokenizer(source);
  source.verify();
  std::vector<WeightAdapters> all;
  for (const std::string& weight : source.weights()) all.push_back(source.read(weight));
  const PeftAdapters peft =
      peft_adapters(source, family, all, options.element.value_or(element_of(source.dtype())));
  io::NewDirectory out(options.out);
  options.on_partial(out.partial());
  const std::vector<TensorFile> files =
      write_tensor_files(out.partial(), peft.tensors, std::numeric_limits<std::int64_t>::max(),
                         [](std::size_t, std::size_t) { return "adapter_model.safetensors"; });
  io::open_storage(out.partial())->write("adapter_config.json", io::bytes_of(adapter_config(source, peft)));
  Exported exported{.from = source.path(),
                    .architecture = find_family(family)->architecture,
                    .form = AdapterForm::adapter,
                    .files = files.size()};
  for (const TensorFile& file : files) exported.bytes += file.info.bytes;
  if (tokenizer) exported.tokenizer = copied_tokenizer(source.tokenizer(), out.partial());
  out.complete();
  options.on_partial("");
  return exported;
}

}  // namespace

Exported export_weights(const ExportOptions& options) {
  const Weights weights = options.average ? Weights::average : Weights::of_step;
  std::unique_ptr<AdapterCheckpoint> adapters = open_adapters(options.from, weights);
  if (options.form && !adapters)
    throw base::checkpoint_error(options.from +
                                 ": holds no adapters (LoRA): leave --adapter, --merge and --base out");
  if (adapters && options.form != AdapterForm::merged) return export_adapters(*adapters, options);
  const bool merged = adapters != nullptr;
  const std::unique_ptr<WeightSource> source =
      merged ? merged_weights(std::move(adapters), options.base) : open_checkpoint(options.from, weights);
  const Origin& origin = source->origin();
  const std::string family = family_of(source->model(), origin.config);
  const bool tokenizer = options.tokenizer && !origin.tokenizer.empty();
  if (tokenizer) require_tokenizer(*source);
  source->verify();
  std::vector<Piece> pieces;
  const std::vector<MappedTensor> mapped = map_tensors(tensor_rules(family), source->model());
  for (std::size_t i = 0; i < mapped.size(); ++i)
    for (const TheirTensor& part : mapped[i].parts)
      pieces.push_back({mapped[i], part,
                        mapped[i].exact ? Element::f32
                                        : options.element.value_or(element_of(source->tensors()[i].dtype))});
  std::vector<OutTensor> tensors;
  for (const Piece& piece : pieces)
    tensors.push_back({piece.part.name, piece.element, piece.tensor.their_shape(piece.part),
                       [&source, &piece](const OutTensor::Take& take) { give_piece(*source, piece, take); }});

  io::NewDirectory out(options.out);
  options.on_partial(out.partial());
  const std::vector<TensorFile> files =
      write_tensor_files(out.partial(), tensors, options.most_shard_bytes, file_name);
  const std::unique_ptr<io::Storage> storage = io::open_storage(out.partial());
  if (files.size() > 1)
    storage->write("model.safetensors.index.json", io::bytes_of(index_text(tensors, files)));
  storage->write("config.json",
                 io::bytes_of(write_config(family, source->model(),
                                           origin.config.empty() ? origin.generation_config : origin.config,
                                           pieces.front().element)));
  storage->write("generation_config.json",
                 io::bytes_of(origin.generation_config.empty() ? "{\n  \"_from_model_config\": true\n}\n"
                                                               : origin.generation_config));
  Exported exported;
  exported.from = source->path();
  exported.architecture = find_family(family)->architecture;
  exported.files = files.size();
  if (const double scalar = source->model().attention.query_pre_attn_scalar;
      family == "gemma2" && scalar != std::floor(scalar))
    exported.notes.push_back(
        fmt::format("config.json: query_pre_attn_scalar is {}, and transformers 5 takes an integer alone for "
                    "Gemma 2: it will refuse this model; transformers 4 loads it",
                    scalar));
  if (merged) exported.form = AdapterForm::merged;
  if (tokenizer) exported.tokenizer = copied_tokenizer(source->tokenizer(), out.partial());
  for (const TensorFile& file : files) exported.bytes += file.info.bytes;
  out.complete();
  options.on_partial("");
  return exported;
}

}  // namespace trainerd::core::hf
