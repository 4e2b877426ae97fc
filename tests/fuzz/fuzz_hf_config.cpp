#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/hf/config.h"
#include "core/model/identity.h"
#include "kernels/base/error.h"

// A config.json of any bytes: only a CheckpointError may be thrown. An accepted model is written in its
// family's form and reads back as the same model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  const std::string text(reinterpret_cast<const char*>(data), size);
  core::hf::SourceConfig config;
  try {
    config = core::hf::read_config(text, "config.json");
  } catch (const base::CheckpointError&) {
    return 0;
  }
  const std::string written =
      core::hf::write_config(config.family, config.model, text, core::hf::Element::bf16);
  const core::hf::SourceConfig again = core::hf::read_config(written, "config.json");
  if (again.family != config.family ||
      core::model::model_identity(again.model) != core::model::model_identity(config.model))
    std::abort();
  return 0;
}
