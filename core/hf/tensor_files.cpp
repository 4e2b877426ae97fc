#include "core/hf/tensor_files.h"

#include "io/checkpoint/safetensors.h"
#include "io/checkpoint/tensor_file.h"

namespace trainerd::core::hf {
namespace {

kernels::DType dtype_of(Element element) {
  return element == Element::f32   ? kernels::DType::f32
         : element == Element::f16 ? kernels::DType::f16
                                   : kernels::DType::bf16;
}

std::vector<TensorFile> split(std::span<const OutTensor> tensors, std::int64_t most_bytes) {
  std::vector<TensorFile> files;
  std::int64_t bytes = 0;  // size of the last file
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t more = io::tensor_bytes(dtype_of(tensors[i].element), tensors[i].shape);
    if (files.empty() || bytes + more > most_bytes) {
      files.push_back({{}, i, 0});
      bytes = 0;
    }
    bytes += more;
    ++files.back().count;
  }
  return files;
}

}  // namespace

std::vector<TensorFile> write_tensor_files(const std::string& directory, std::span<const OutTensor> tensors,
                                           std::int64_t most_bytes, const FileName& name) {
  std::vector<TensorFile> files = split(tensors, most_bytes);
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::span<const OutTensor> inside = tensors.subspan(files[f].first, files[f].count);
    std::vector<io::StoredTensor> stored;
    for (const OutTensor& tensor : inside)
      stored.push_back({.name = tensor.name, .dtype = dtype_of(tensor.element), .shape = tensor.shape});
    // "pt": layout of PyTorch tensors; transformers refuses a file without it.
    io::TensorFileWriter writer(
        directory + "/" + name(f, files.size()),
        io::lay_out_safetensors(std::move(stored), {{"format", "pt"}}, io::Gaps::none));
    for (const OutTensor& tensor : inside)
      tensor.give([&](std::span<const std::byte> bytes) { writer.append(bytes); });
    files[f].info = writer.finish();
  }
  return files;
}

}  // namespace trainerd::core::hf
