// Fields of a config.json that say which layers slide, and how scores are scaled.

#include <algorithm>

#include "core/hf/config_values.h"

namespace trainerd::core::hf {
namespace {

using nlohmann::json;

/// The words of `layer_types`; a problem where a layer is of another kind.
void read_layer_types(Reading& r, const json& types) {
  if (!types.is_array()) return r.problem("layer_types", "expected a list, found " + shown(types));
  const json* layers = find(r.json, "num_hidden_layers");
  if (layers != nullptr && layers->is_number_integer() && *layers != types.size())
    return r.problem("layer_types", "has " + std::to_string(types.size()) + " layers of " + shown(*layers));
  for (const json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      return r.problem("layer_types", shown(type) +
                                          " is not available yet: full_attention and "
                                          "sliding_attention are");
    r.model.attention.pattern.emplace_back(type == "sliding_attention" ? job::kSliding : job::kFull);
  }
}

void read_window(Reading& r) {
  const json* window = find(r.json, "sliding_window");
  if (absent(window)) r.problem("sliding_window", "is missing, and layers use it");
  else r.model.attention.window = read_size(r, "sliding_window", *window).value_or(0);
}

bool slides(const job::ModelOptions& m, std::int64_t layer) { return job::layer_options(m, layer).slides; }

/// Reads Qwen's sliding layers: by name, or from a given layer on.
void read_qwen_windows(Reading& r, const json* use) {
  job::AttentionOptions& a = r.model.attention;
  const json* types = find(r.json, "layer_types");
  const json* first = find(r.json, "max_window_layers");
  const json* layers = find(r.json, "num_hidden_layers");
  const json* window = find(r.json, "sliding_window");
  const bool used = read_flag(r, "use_sliding_window", use, false).value_or(false);
  if (!absent(types)) {
    read_layer_types(r, *types);
  } else if (used && (window == nullptr || !window->is_null()) && layers != nullptr &&
             layers->is_number_integer() && *layers >= 1 && *layers <= 1 << 16) {
    if (!absent(first) && (!first->is_number_integer() || *first < 0))
      return r.problem("max_window_layers", "expected an integer of 0 or more, found " + shown(*first));
    const std::int64_t full = absent(first) ? 28 : first->get<std::int64_t>();  // transformers' default
    for (std::int64_t i = 0; i < layers->get<std::int64_t>(); ++i)
      a.pattern.emplace_back(i < full ? job::kFull : job::kSliding);
  }
  if (std::find(a.pattern.begin(), a.pattern.end(), job::kSliding) == a.pattern.end()) return;
  if (!used) return r.problem("layer_types", "has layers that slide, and use_sliding_window is not true");
  if (absent(types) && window == nullptr) a.window = 4096;  // transformers' default
  else read_window(r);
}

}  // namespace

std::vector<Field> layer_type_fields(std::int64_t window, std::int64_t period) {
  const auto read = [window, period](Reading& r, const json* types) {
    job::AttentionOptions& a = r.model.attention;
    if (!absent(types)) {
      read_layer_types(r, *types);
    } else {
      // Every n-th layer is full.
      std::int64_t every = period;
      for (const char* name : {"sliding_window_pattern", "_sliding_window_pattern"})
        if (const json* value = find(r.json, name); !absent(value))
          every = read_size(r, name, *value).value_or(period);
      if (every > 1 << 16) return r.problem("sliding_window_pattern", "is more than any model's layers");
      a.pattern.assign(static_cast<std::size_t>(every), job::kSliding);
      a.pattern.back() = job::kFull;
    }
    if (std::find(a.pattern.begin(), a.pattern.end(), job::kSliding) == a.pattern.end()) return;
    if (find(r.json, "sliding_window") == nullptr) a.window = window;
    else read_window(r);
  };
  const auto write = [](Writing& w) {
    const job::ModelOptions& m = w.model;
    if (m.attention.window > 0) w.out["sliding_window"] = m.attention.window;
    else keep(w, "sliding_window");
    for (std::int64_t i = 0; i < m.layers; ++i)
      w.out["layer_types"].push_back(slides(m, i) ? "sliding_attention" : "full_attention");
  };
  std::vector<Field> fields{{"layer_types", read, write}};
  for (const char* name : {"sliding_window", "sliding_window_pattern", "_sliding_window_pattern"})
    fields.push_back({name, [](Reading&, const json*) {}, [](Writing&) {}});
  return fields;
}

Field score_scale_field(const std::string& name, double fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            double& to = r.model.attention.scale;
            if (absent(value)) to = fallback;
            else if (const auto scale = read_real(r, name, *value)) to = *scale;
          },
          [name](Writing& w) { w.out[name] = job::score_scale(w.model); }};
}

Field query_scalar_field(const std::string& name, double fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            double& to = r.model.attention.query_pre_attn_scalar;
            if (absent(value)) to = fallback;
            else if (const auto scalar = read_real(r, name, *value)) to = *scalar;
          },
          [name](Writing& w) {
            const double own = w.model.attention.query_pre_attn_scalar;
            // Some versions accept only an integer.
            if (own == 0) w.out[name] = w.model.head_dim;
            else if (own == std::floor(own) && own < 1e15) w.out[name] = static_cast<std::int64_t>(own);
            else w.out[name] = own;
          }};
}

Field softcap_field(const std::string& name, SoftcapOption option, double fallback) {
  return {name,
          [name, option, fallback](Reading& r, const json* value) {
            if (value == nullptr) option(r.model) = fallback;
            else if (!value->is_null()) option(r.model) = read_real(r, name, *value).value_or(0);
          },
          [name, option](Writing& w) {
            job::ModelOptions model = w.model;
            const double cap = option(model);
            if (cap > 0) w.out[name] = cap;
            else w.out[name] = nullptr;  // if absent, the default might be a number
          }};
}

Field window_field(const std::string& name, std::int64_t fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            if (value == nullptr) r.model.attention.window = fallback;
            else if (!value->is_null()) r.model.attention.window = read_size(r, name, *value).value_or(0);
          },
          [name](Writing& w) {
            // The field only means that every layer slides.
            if (w.model.attention.window > 0) w.out[name] = w.model.attention.window;
            else w.out[name] = nullptr;
          }};
}

std::vector<Field> window_fields() {
  const auto write = [](Writing& w) {
    const job::ModelOptions& m = w.model;
    const bool windows = m.attention.window > 0;
    w.out["use_sliding_window"] = windows;
    if (!windows) {
      for (const char* name : {"sliding_window", "max_window_layers", "layer_types"}) keep(w, name);
      return;
    }
    std::int64_t first = 0;
    while (first < m.layers && !slides(m, first)) ++first;
    w.out["sliding_window"] = m.attention.window;
    w.out["max_window_layers"] = first;
    for (std::int64_t i = 0; i < m.layers; ++i)
      w.out["layer_types"].push_back(slides(m, i) ? "sliding_attention" : "full_attention");
  };
  const auto elsewhere = [](const char* name) {
    return Field{name, [](Reading&, const json*) {}, [](Writing&) {}};
  };
  return {{"use_sliding_window", read_qwen_windows, write},
          elsewhere("sliding_window"),
          elsewhere("max_window_layers"),
          elsewhere("layer_types")};
}

std::vector<Field> no_window_fields() {
  const auto kept = [](const char* name) {
    return Field{name, [](Reading&, const json*) {}, [name](Writing& w) { keep(w, name); }};
  };
  return {{"use_sliding_window",
           [](Reading& r, const json* use) {
             if (read_flag(r, "use_sliding_window", use, false).value_or(false))
               r.problem(
                   "use_sliding_window",
                   "is not available with experts: versions of transformers differ in which layers slide");
           },
           [](Writing& w) { w.out["use_sliding_window"] = false; }},
          {"layer_types",
           [](Reading& r, const json* types) {
             if (absent(types)) return;
             read_layer_types(r, *types);
             for (const std::string& word : r.model.attention.pattern)
               if (word == job::kSliding) return r.problem("layer_types", "has layers that slide");
             r.model.attention.pattern.clear();
           },
           [](Writing& w) { keep(w, "layer_types"); }},
          kept("sliding_window"),
          kept("max_window_layers")};
}

std::vector<Field> late_window_fields(std::int64_t window, std::int64_t first) {
  const std::string name = "sliding_window";
  const auto read = [window, first, name](Reading& r, const json* value) {
    const json* begin = find(r.json, "max_window_layers");
    if (!absent(find(r.json, "layer_types"))) return;  // they say it
    const std::int64_t used = value == nullptr ? window
                              : absent(value)  ? 0
                                               : read_size(r, name, *value).value_or(0);
    if (used == 0) return;
    const std::int64_t full =
        absent(begin) ? first : read_size(r, "max_window_layers", *begin).value_or(r.model.layers);
    if (r.model.layers > full) r.problem(name, "is not available: all layers are full");
  };
  std::vector<Field> fields = no_window_fields();
  std::erase_if(fields, [](const Field& f) { return f.name == "use_sliding_window"; });
  for (Field& field : fields)
    if (field.name == name) field = {name, read, [name](Writing& w) { w.out[name] = nullptr; }};
  return fields;
}

void complete_layers(Reading& r) {
  job::ModelOptions& m = r.model;
  complete_rope(r);
  job::AttentionOptions& a = m.attention;
  job::settle_scores(m);
  if (a.window == 0) a.pattern.clear(), a.sliding_theta = 0;
  if (m.rope_scaling == job::RopeScaling{} && a.sliding_theta == m.rope_theta) a.sliding_theta = 0;
  m.attention.pattern = job::shortest_pattern(m.attention.pattern, m.layers);
}

}  // namespace trainerd::core::hf
