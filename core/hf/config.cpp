#include "core/hf/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "core/hf/families.h"
#include "core/model/identity.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

using nlohmann::json;

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

base::CheckpointError refused(const std::string& path, const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "\n") + path + ": " + problem;
  return base::checkpoint_error(text);
}

json parse(const std::string& text, const std::string& path) {
  try {
    json config = io::parse_json(text);
    if (!config.is_object()) throw io::JsonError("not an object");
    return config;
  } catch (const io::JsonError& e) {
    throw base::checkpoint_error(path + ": " + e.what() + ": fetch the file again");
  }
}

/// The family of a config. Throws CheckpointError that lists the known ones.
const Family& family_in(const json& config, const std::string& path) {
  const auto type = config.find("model_type");
  const bool word = type != config.end() && type->is_string();
  const Family* family = word ? find_family(type->get<std::string>()) : nullptr;
  if (family == nullptr)
    throw base::checkpoint_error(path + ": model_type " +
                                 (word ? io::text_of(*type) : "is missing, and the architecture") +
                                 " is not available: the families are " + listed(family_names()));
  const auto architectures = config.find("architectures");
  if (architectures != config.end() && !architectures->is_null() &&
      *architectures != json::array({family->architecture}))
    throw base::checkpoint_error(path + ": architectures is " + io::text_of(*architectures) +
                                 ": what can be trained is [\"" + family->architecture + "\"]");
  return *family;
}

/// Fields about the file itself, or about the storage of weights, for which the weight files are
/// authoritative.
const std::set<std::string>& about_the_file() {
  static const std::set<std::string> names{"model_type", "architectures", "transformers_version", "dtype",
                                           "torch_dtype"};
  return names;
}

}  // namespace

SourceConfig read_config(const std::string& text, const std::string& path) {
  const json config = parse(text, path);
  const Family& family = family_in(config, path);
  Reading reading{.json = config, .model = family.common, .problems = {}, .notes = {}};
  std::set<std::string> known = about_the_file();
  for (const Field& field : family.fields) {
    known.insert(field.name);
    const auto value = config.find(field.name);
    field.read(reading, value == config.end() ? nullptr : &*value);
  }
  for (const auto& [name, value] : config.items())
    if (!known.contains(name) && !value.is_null())
      reading.problem(name, "is not a field of " + family.architecture +
                                " that is known here: remove it from the file if it changes nothing that the "
                                "model computes");
  // GPT-2's default if the file leaves it out.
  if (family.common.mlp == job::Mlp::gelu && reading.model.ffn == 0)
    reading.model.ffn = 4 * reading.model.hidden;
  complete(reading);
  if (!reading.problems.empty()) throw refused(path, reading.problems);
  return {family.model_type, reading.model, reading.further_layers, reading.notes};
}

std::string write_config(const std::string& family_name, const job::ModelOptions& model,
                         const std::string& source, Element element) {
  const Family* family = find_family(family_name);
  base::check(family != nullptr, "a config is written of a family that there is");
  const json from = source.empty() ? json::object() : parse(source, "the source's config.json");
  nlohmann::ordered_json out;
  out["architectures"] = json::array({family->architecture});
  out["model_type"] = family->model_type;
  out["torch_dtype"] = element == Element::bf16  ? "bfloat16"
                       : element == Element::f16 ? "float16"
                                                 : "float32";
  Writing writing{.model = model, .source = from, .out = out};
  for (const Field& field : family->fields) field.write(writing);
  return io::to_text(out, 2) + "\n";
}

namespace {

/// `read` where it differs from `wanted` by rounding only: some factors follow from others in the file.
double same_or(double read, double wanted) {
  return std::abs(read - wanted) <= 1e-11 * std::abs(wanted) ? wanted : read;
}

/// The model that a written config.json gives again.
job::ModelOptions read_back(const std::string& written, const std::string& family,
                            const job::ModelOptions& wanted) {
  job::ModelOptions m = read_config(written, family).model;
  m.attention.scale = same_or(m.attention.scale, wanted.attention.scale);
  m.rope_scaling.attention_factor =
      same_or(m.rope_scaling.attention_factor, wanted.rope_scaling.attention_factor);
  return m;
}

}  // namespace

std::string family_of(const job::ModelOptions& model, const std::string& source) {
  std::vector<std::string> candidates = family_names();
  if (!source.empty()) {
    const std::string first =
        family_in(parse(source, "the source's config.json"), "the source's config.json").model_type;
    std::stable_partition(candidates.begin(), candidates.end(),
                          [&](const std::string& name) { return name == first; });
  }
  // A family can express a model if its config.json reads back as the same model.
  const auto wanted = model::model_identity(model);
  for (const std::string& name : candidates) {
    const std::string written = write_config(name, model, "", Element::f32);
    try {
      if (model::model_identity(read_back(written, name, model)) == wanted) return name;
    } catch (const base::CheckpointError&) {  // the family cannot
    }
  }
  std::string options;
  for (const auto& [key, value] : wanted) options += "\n  " + key + ": " + value;
  throw base::checkpoint_error("no Hugging Face family that is known here (" + listed(family_names()) +
                               ") has models with these options together:" + options);
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.model_type);
  return names;
}

std::span<const TensorRule> tensor_rules(const std::string& family) {
  const Family* found = find_family(family);
  base::check(found != nullptr, "a family that there is");
  return found->tensors;
}

bool is_left_out(const SourceConfig& config, const std::string& name) {
  const Family* found = find_family(config.family);
  base::check(found != nullptr, "a family that there is");
  constexpr std::string_view kLayers = "model.layers.";
  std::int64_t layer = -1;
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  if (layer >= config.model.layers && layer < config.model.layers + config.further_layers) return true;
  return std::any_of(found->tables.begin(), found->tables.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

}  // namespace trainerd::core::hf
