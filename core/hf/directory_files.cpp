#include "core/hf/directory_files.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

constexpr const char* kSingle = "model.safetensors";

}  // namespace

std::vector<std::string> weight_files(const io::Storage& storage) {
  if (storage.exists(kSingle)) return {kSingle};
  const std::string here = storage.path_of("");
  if (!storage.exists(kIndex)) {
    const bool pickled =
        storage.exists("pytorch_model.bin") || storage.exists("pytorch_model.bin.index.json");
    throw base::checkpoint_error(
        here + ": has neither " + kSingle + " nor " + kIndex +
        (pickled ? ": pytorch_model.bin is not read; save the model with save_pretrained of a recent "
                   "transformers, which writes safetensors"
                 : ": fetch the model's weights into it"));
  }
  const std::string path = storage.path_of(kIndex);
  try {
    std::set<std::string> files;
    const nlohmann::json index = io::parse_json(io::read_text(storage, kIndex));
    for (const auto& [tensor, file] : io::text_map(index, "weight_map")) {
      if (file.empty() || file.find('/') != std::string::npos || file.front() == '.')
        throw io::JsonError("\"" + file + "\" is not the name of a file beside it");
      files.insert(file);
    }
    if (files.empty()) throw io::JsonError("names no file");
    return {files.begin(), files.end()};
  } catch (const io::JsonError& e) {
    throw base::checkpoint_error(path + ": " + e.what() + ": fetch the file again");
  }
}

std::string checked_generation_config(const io::Storage& storage, const std::string& path) {
  std::string text = io::read_text(storage, "generation_config.json");
  try {
    const nlohmann::json config = io::parse_json(text);
    if (!config.is_object()) throw io::JsonError("not an object");
    const nlohmann::json ids = config.value("eos_token_id", nlohmann::json());
    for (const nlohmann::json& id : ids.is_array() ? ids : nlohmann::json::array({ids}))
      if (!id.is_null() && !(id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int>::max()))
        throw io::JsonError("eos_token_id is " + io::text_of(id) + ", which is no token's id");
  } catch (const io::JsonError& e) {
    throw base::checkpoint_error(path + ": " + e.what() + ": fetch the file again, or remove it");
  }
  return text;
}

}  // namespace trainerd::core::hf
