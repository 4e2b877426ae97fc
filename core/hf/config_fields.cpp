#include "core/hf/config_fields.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/hf/config_values.h"
#include "io/text/json.h"

namespace trainerd::core::hf {

using nlohmann::json;

namespace {
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
}

std::string shown(const json& value) {
  std::string text = io::text_of(value);
  if (text.size() > 80) text.replace(77, std::string::npos, "...");
  return text;
}

bool absent(const json* value) { return value == nullptr || value->is_null(); }

std::optional<std::int64_t> read_size(Reading& r, const std::string& name, const json& value) {
  const bool fits = value.is_number_integer() && value >= 1 && value <= kMaxSize;
  if (fits) return value.get<std::int64_t>();
  r.problem(name, "expected an integer from 1 to " + std::to_string(kMaxSize) + ", found " + shown(value));
  return std::nullopt;
}

std::optional<double> read_real(Reading& r, const std::string& name, const json& value) {
  if (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0)
    return value.get<double>();
  r.problem(name, "expected a number above 0, found " + shown(value));
  return std::nullopt;
}

std::optional<bool> read_flag(Reading& r, const std::string& name, const json* value, bool fallback) {
  if (absent(value)) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  r.problem(name, "expected true or false, found " + shown(*value));
  return std::nullopt;
}

const json* find(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

void keep(Writing& w, const std::string& name) {
  if (const json* value = find(w.source, name)) w.out[name] = *value;
}

namespace {

/// A known field that is read together with another one.
Field read_elsewhere(const std::string& name, std::function<void(Writing&)> write) {
  return {name, [](Reading&, const json*) {}, std::move(write)};
}

}  // namespace

Field size_field(const std::string& name, SizeOption option) {
  return {name,
          [name, option](Reading& r, const json* value) {
            if (absent(value)) return r.problem(name, "is missing");
            if (const auto size = read_size(r, name, *value)) r.model.*option = *size;
          },
          [name, option](Writing& w) { w.out[name] = w.model.*option; }};
}

Field optional_size_field(const std::string& name, SizeOption option) {
  return {name,
          [name, option](Reading& r, const json* value) {
            if (absent(value)) return;
            if (const auto size = read_size(r, name, *value)) r.model.*option = *size;
          },
          [name, option](Writing& w) { w.out[name] = w.model.*option; }};
}

Field head_dim_field(const std::string& name) {
  Field field = optional_size_field(name, &job::ModelOptions::head_dim);
  field.write = [name](Writing& w) {
    if (w.model.head_dim * w.model.heads != w.model.hidden) w.out[name] = w.model.head_dim;
  };
  return field;
}

Field positions_field(const std::string& name) {
  Field field = size_field(name, &job::ModelOptions::seq_len);
  field.write = [name](Writing& w) {
    const json* source = find(w.source, name);
    const bool longer = source != nullptr && source->is_number_integer() && *source > w.model.seq_len;
    w.out[name] = longer ? source->get<std::int64_t>() : w.model.seq_len;
  };
  return field;
}

Field real_field(const std::string& name, RealOption option, double fallback) {
  return {name,
          [name, option, fallback](Reading& r, const json* value) {
            if (absent(value)) r.model.*option = fallback;
            else if (const auto real = read_real(r, name, *value)) r.model.*option = *real;
          },
          [name, option](Writing& w) { w.out[name] = w.model.*option; }};
}

Field flag_field(const std::string& name, FlagOption option, bool fallback) {
  return {name,
          [name, option, fallback](Reading& r, const json* value) {
            if (const auto flag = read_flag(r, name, value, fallback)) r.model.*option = *flag;
          },
          [name, option](Writing& w) { w.out[name] = w.model.*option; }};
}

Field fixed_field(const std::string& name, std::vector<json> values, const std::string& why) {
  const json written = values.front();
  return {name,
          [name, values = std::move(values), why](Reading& r, const json* value) {
            if (absent(value)) return;
            for (const json& known : values)
              if (*value == known) return;
            r.problem(name, shown(*value) + " is not available yet: " + why);
          },
          [name, written](Writing& w) {
            if (!written.is_null()) w.out[name] = written;
          }};
}

Field kept_field(const std::string& name) {
  return read_elsewhere(name, [name](Writing& w) { keep(w, name); });
}

Field own_program_field(const std::string& name) {
  return {name,
          [name](Reading& r, const json* value) {
            if (!absent(value))
              r.notes.push_back(name +
                                " names a program of the directory's own, which is not run: the model is "
                                "taken for one of transformers' own class");
          },
          [](Writing&) {}};
}

Field ignored_field(const std::string& name) {
  return {name, [](Reading&, const json*) {}, [](Writing&) {}};
}

Field token_field(const std::string& name) {
  return read_elsewhere(name, [name](Writing& w) {
    w.out[name] = nullptr;
    keep(w, name);
  });
}

Field dropout_field(const std::string& name, const std::string& key) {
  return {name,
          [name, key](Reading& r, const json* value) {
            if (absent(value)) return;
            if (!value->is_number()) r.problem(name, "expected a number, found " + shown(*value));
            else if (*value != 0)
              r.notes.push_back(name + " is " + shown(*value) +
                                (key.empty() ? ": training here has none of it"
                                             : ": training here has none of it but by " + key));
          },
          [name](Writing& w) { keep(w, name); }};
}

void complete(Reading& r) {
  job::ModelOptions& m = r.model;
  if (!r.problems.empty()) return;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  job::settle_biases(m);
  job::settle_experts(m);
  if (m.ffn == 0) r.problem("intermediate_size", "is missing");
  if (m.heads % m.kv_heads != 0)
    r.problem("num_key_value_heads", std::to_string(m.kv_heads) + " does not divide the " +
                                         std::to_string(m.heads) + " query heads");
  job::settle_mla(m);
  if (m.head_dim == 0) {
    if (m.hidden % m.heads != 0)
      r.problem("hidden_size", std::to_string(m.hidden) + " is not divisible by " + std::to_string(m.heads) +
                                   " heads, and head_dim is not given");
    m.head_dim = m.hidden / m.heads;
  }
  if (m.positions == job::Positions::rope && !m.mla.on() && m.head_dim % 2 != 0)
    r.problem("head_dim", std::to_string(m.head_dim) + " is odd: rotary positions turn pairs of features");
  if (m.mla.qk_rope_head_dim % 2 != 0)
    r.problem("qk_rope_head_dim",
              std::to_string(m.mla.qk_rope_head_dim) + " is odd: rotary positions turn pairs of features");
  if (m.experts.on() && job::expert_layers(m) == 0)
    r.problem("num_hidden_layers", "all " + std::to_string(m.layers) + " layers are dense: none has experts");
  constexpr std::int64_t kMaxLayers = 1 << 10;  // same limit as `model.layers`
  if (m.layers > kMaxLayers)
    r.problem("num_hidden_layers",
              std::to_string(m.layers) + " is more than the " + std::to_string(kMaxLayers) + " of a job");
  else complete_layers(r);
}

}  // namespace trainerd::core::hf
