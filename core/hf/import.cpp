#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/hf/convert.h"
#include "core/hf/tensor_files.h"
#include "core/hf/weight_source.h"
#include "core/model/identity.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/safetensors.h"
#include "io/hash/hash.h"
#include "io/storage/new_directory.h"
#include "io/storage/storage.h"
#include "io/text/text.h"

namespace trainerd::core::hf {
namespace {

io::TensorSlice whole(const SourceTensor& tensor) {
  return {.name = tensor.name,
          .dtype = tensor.dtype,
          .logical_shape = tensor.shape,
          .begin = std::vector<std::int64_t>(tensor.shape.size(), 0),
          .shape = tensor.shape};
}

/// Reads a tensor in pieces of whole rows.
void give_rows(const WeightSource& source, const SourceTensor& tensor, const OutTensor::Take& take) {
  io::TensorSlice box = whole(tensor);
  const std::int64_t rows = tensor.shape[0],
                     row_bytes =
                         io::tensor_bytes(tensor.dtype, tensor.shape) / std::max<std::int64_t>(1, rows),
                     step = std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, row_bytes));
  std::vector<std::byte> bytes;
  for (std::int64_t row = 0; row < rows; row += step) {
    box.begin[0] = row;
    box.shape[0] = std::min(step, rows - row);
    bytes.resize(static_cast<std::size_t>(box.shape[0] * row_bytes));
    source.read(box, bytes);
    take(bytes);
  }
}

io::Manifest manifest_of(const WeightSource& source, Origin origin, const std::vector<TensorFile>& files) {
  io::Manifest manifest;
  manifest.state.identity = model::model_identity(source.model());
  manifest.state.origin = to_text(origin);
  for (std::size_t f = 0; f < files.size(); ++f) {
    manifest.shards.push_back(files[f].info);
    for (std::size_t i = files[f].first; i < files[f].first + files[f].count; ++i)
      manifest.slices.emplace_back(static_cast<int>(f), whole(source.tensors()[i]));
  }
  return manifest;
}

}  // namespace

Imported import_weights(const ImportOptions& options) {
  const std::unique_ptr<WeightSource> source = open_directory(options.from);
  Origin origin = source->origin();
  origin.from = std::filesystem::absolute(io::local_path(options.from)).lexically_normal().string();
  io::NewDirectory out(options.out);  // before the long read, so that an existing name is refused at once
  options.on_partial(out.partial());
  origin.content = source->verify();
  std::vector<OutTensor> tensors;
  for (const SourceTensor& tensor : source->tensors())
    tensors.push_back(
        {tensor.name, element_of(tensor.dtype), tensor.shape,
         [&source, &tensor](const OutTensor::Take& take) { give_rows(*source, tensor, take); }});
  const std::vector<TensorFile> files = write_tensor_files(
      out.partial(), tensors, options.most_shard_bytes,
      [](std::size_t i, std::size_t) { return fmt::format("shard-{:05}.safetensors", i); });
  if (!source->tokenizer().empty())
    copy_tokenizer(tokenizer_files_in(source->tokenizer()), out.partial() + "/" + kCompanionFolder);
  const std::string manifest = io::to_json(manifest_of(*source, origin, files)),
                    marker = io::xxh3_hex(io::bytes_of(manifest)) + "\n";
  const std::unique_ptr<io::Storage> storage = io::open_storage(out.partial());
  storage->write(io::kManifestFile, io::bytes_of(manifest));
  storage->write(io::kMarkerFile, io::bytes_of(marker));
  out.complete();
  options.on_partial("");
  std::string tokenizer;
  if (!source->tokenizer().empty())
    for (const std::string& name : tokenizer_files(source->tokenizer()))
      tokenizer += (tokenizer.empty() ? "" : ", ") + name;
  return {std::filesystem::absolute(io::local_path(options.out)).lexically_normal().string(), source->model(),
          source->notes(), tokenizer};
}

}  // namespace trainerd::core::hf
