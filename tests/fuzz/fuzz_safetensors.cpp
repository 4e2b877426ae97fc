#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/checkpoint/safetensors.h"
#include "kernels/base/error.h"

// A safetensors file of any bytes: only a CheckpointError may be thrown, and every tensor lies inside the
// file and has the bytes of its shape.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  try {
    const auto file_bytes = static_cast<std::int64_t>(size);
    const io::SafetensorsHeader header =
        io::parse_safetensors(std::as_bytes(std::span(data, size)), file_bytes);
    std::int64_t last = 0;
    for (const io::StoredTensor& tensor : header.tensors) {
      const bool inside =
          tensor.begin >= last && tensor.end >= tensor.begin && tensor.end <= file_bytes - header.data_offset;
      if (!inside || io::tensor_bytes(tensor.dtype, tensor.shape) != tensor.end - tensor.begin) std::abort();
      last = tensor.end;
    }
  } catch (const base::CheckpointError&) {}
  return 0;
}
