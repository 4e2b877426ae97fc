// Fields of a config.json for the scaling of angles and for sliding layers.

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/hf/config_values.h"

namespace trainerd::core::hf {
namespace {

using job::RopeScalingKind;
using nlohmann::json;

const char* word_of(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::none: break;
    case RopeScalingKind::linear: return "linear";
    case RopeScalingKind::llama3: return "llama3";
    case RopeScalingKind::yarn: return "yarn";
  }
  return "default";
}

/// One object of `rope_scaling` (transformers 4) or `rope_parameters` (5).
class RopeReader {
 public:
  /// `top`: the top-level field that also has the base. `theta` and `scaling` receive the results. `heads`:
  /// whether parts of heads may be rotated, by `partial_rotary_factor` here or at the top.
  enum class Heads : std::uint8_t { whole, parts };
  RopeReader(Reading& r, std::string name, const json& rope, std::string top, double& theta,
             job::RopeScaling& scaling, Heads heads = Heads::whole)
      : heads_(heads),
        r_(r),
        name_(std::move(name)),
        rope_(rope),
        top_(std::move(top)),
        theta_to_(theta),
        scaling_to_(scaling) {}

  void read() {
    if (!kind()) return;
    for (const auto& [key, value] : rope_.items())
      if (!value.is_null() && !take(key, value))
        r_.problem(name_, "\"" + key + "\" is not known with " + word_of(s_.kind) +
                              " scaling: remove it if it changes nothing");
    if (s_.kind == RopeScalingKind::none) return finish();
    const json* factor = find(rope_, "factor");
    if (absent(factor)) return r_.problem(name_, "factor is missing");
    if (s_.factor < 1) return r_.problem(name_, "factor " + shown(*factor) + " is less than 1");
    if (s_.attention_factor == 0 && mscale_ > 0 && mscale_all_ > 0)
      s_.attention_factor = of_mscale(mscale_) / of_mscale(mscale_all_);
    // A factor of 1 is no scaling, unless cos and sin are scaled.
    if (s_.factor == 1 && s_.attention_factor == 0) s_ = {};
    finish();
  }

 private:
  /// Files may have both spellings, which must agree.
  void finish() {
    const bool second = name_ != "rope_scaling" && &scaling_to_ == &r_.model.rope_scaling &&
                        !absent(find(r_.json, "rope_scaling"));
    if (second && s_ != scaling_to_)
      r_.problem(name_, "says another scaling than rope_scaling: remove the one that is wrong");
    else scaling_to_ = s_;
  }
  bool kind() {
    const json* type = find(rope_, "rope_type");
    if (type == nullptr) type = find(rope_, "type");
    if (absent(type) || *type == "default") return true;
    for (const RopeScalingKind kind :
         {RopeScalingKind::linear, RopeScalingKind::llama3, RopeScalingKind::yarn})
      if (*type == word_of(kind)) s_.kind = kind;
    if (s_.kind != RopeScalingKind::none) return true;
    r_.problem(name_, shown(*type) +
                          " scaling of rotary positions is not available yet: default, linear, "
                          "llama3 and yarn are");
    return false;
  }
  double of_mscale(double mscale) const {
    return s_.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(s_.factor) + 1.0;
  }
  void real(const std::string& key, const json& value, double& to) {
    if (const auto read = read_real(r_, name_ + "." + key, value)) to = *read;
  }

  /// Reads a key; false if the kind has no such key.
  bool take(const std::string& key, const json& value) {
    const bool llama3 = s_.kind == RopeScalingKind::llama3, yarn = s_.kind == RopeScalingKind::yarn;
    if (key == "rope_type" || key == "type") return true;
    if (key == "rope_theta") return theta(value), true;
    if (key == "partial_rotary_factor") return fraction(value), true;
    if (key == "factor" && s_.kind != RopeScalingKind::none) return real(key, value, s_.factor), true;
    if (key == "original_max_position_embeddings" && (llama3 || yarn)) {
      if (const auto size = read_size(r_, name_ + "." + key, value)) s_.original_max_position = *size;
      return true;
    }
    if (key == "low_freq_factor" && llama3) return real(key, value, s_.low_freq_factor), true;
    if (key == "high_freq_factor" && llama3) return real(key, value, s_.high_freq_factor), true;
    if (!yarn) return false;
    if (key == "beta_fast") return real(key, value, s_.beta_fast), true;
    if (key == "beta_slow") return real(key, value, s_.beta_slow), true;
    if (key == "attention_factor") return real(key, value, s_.attention_factor), true;
    if (key == "mscale") return real(key, value, mscale_), true;
    if (key == "mscale_all_dim") return real(key, value, mscale_all_), true;
    if (key != "truncate") return false;
    s_.truncate = read_flag(r_, name_ + "." + key, &value, true).value_or(true);
    return true;
  }

  void fraction(const json& value) {
    const json* top = find(r_.json, "partial_rotary_factor");
    if (heads_ == Heads::whole && value != 1.0)
      r_.problem(name_, "partial_rotary_factor " + shown(value) +
                            " is not available: the family rotates the whole of each head");
    else if (heads_ == Heads::parts && !absent(top) && *top != value)
      r_.problem(name_, "partial_rotary_factor is " + shown(value) + " here and " + shown(*top) +
                            " at the top: remove one of them");
    else if (heads_ == Heads::parts)
      r_.model.rotary_fraction = read_real(r_, name_ + ".partial_rotary_factor", value).value_or(1);
  }

  void theta(const json& value) {
    const auto theta = read_real(r_, name_ + ".rope_theta", value);
    const json* top = find(r_.json, top_);
    if (theta && !absent(top) && *top != value)
      r_.problem(name_, "rope_theta is " + shown(value) + " here and " + shown(*top) +
                            " at the top: remove one of them");
    else if (theta) theta_to_ = *theta;
  }

  const Heads heads_;
  Reading& r_;
  const std::string name_;
  const json& rope_;
  const std::string top_;
  double& theta_to_;
  job::RopeScaling& scaling_to_;
  job::RopeScaling s_;
  double mscale_ = 0, mscale_all_ = 0;
};

/// In the spelling of transformers 4; null without scaling.
json scaling_json(const job::RopeScaling& s) {
  if (s.kind == RopeScalingKind::none) return nullptr;
  json rope = {{"rope_type", word_of(s.kind)}, {"factor", s.factor}};
  if (s.kind != RopeScalingKind::linear) rope["original_max_position_embeddings"] = s.original_max_position;
  if (s.kind == RopeScalingKind::llama3)
    rope["low_freq_factor"] = s.low_freq_factor, rope["high_freq_factor"] = s.high_freq_factor;
  if (s.kind == RopeScalingKind::yarn) {
    rope["beta_fast"] = s.beta_fast, rope["beta_slow"] = s.beta_slow, rope["truncate"] = s.truncate;
    if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  }
  return rope;
}

/// Reads the words of `layer_types`; a problem if a layer is of another kind.
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

std::vector<Field> rope_fields(std::optional<double> rotary_fraction) {
  const std::string part = "partial_rotary_factor";
  const bool parts = rotary_fraction.has_value();
  const auto scaling = [parts](const std::string& name) {
    return [name, parts](Reading& r, const json* value) {
      if (absent(value)) return;
      if (!value->is_object()) return r.problem(name, "expected an object or null, found " + shown(*value));
      RopeReader(r, name, *value, "rope_theta", r.model.rope_theta, r.model.rope_scaling,
                 parts ? RopeReader::Heads::parts : RopeReader::Heads::whole)
          .read();
    };
  };
  // transformers 5 reads the spelling of 4, but not vice versa.
  return {
      real_field("rope_theta", &job::ModelOptions::rope_theta, 10000.0),
      // Before the other two, which may also have it.
      parts ? real_field(part, &job::ModelOptions::rotary_fraction, *rotary_fraction)
            : fixed_field(part, {nullptr, 1.0}, "the family rotates the whole of each head"),
      {"rope_scaling", scaling("rope_scaling"),
       [](Writing& w) { w.out["rope_scaling"] = scaling_json(w.model.rope_scaling); }},
      {"rope_parameters", scaling("rope_parameters"), [](Writing&) {}},
  };
}

std::vector<Field> unscaled_rope_fields(std::optional<double> rotary_fraction) {
  std::vector<Field> fields = rope_fields(rotary_fraction);
  for (Field& field : fields)
    if (field.name == "rope_scaling" || field.name == "rope_parameters")
      field.read = [name = field.name, read = field.read](Reading& r, const json* value) {
        read(r, value);
        if (r.model.rope_scaling.kind != RopeScalingKind::none)
          r.problem(name, "the family has longrope scaling alone, which is not available yet");
      };
  return fields;
}

std::vector<Field> two_rope_fields(double theta, double sliding_theta) {
  std::vector<Field> fields = rope_fields();
  fields[0] = real_field("rope_theta", &job::ModelOptions::rope_theta, theta);
  const std::string local = "rope_local_base_freq";
  // transformers 5: one object per kind of layer.
  fields.back().read = [local](Reading& r, const json* value) {
    if (absent(value)) return;
    if (!value->is_object())
      return r.problem("rope_parameters", "expected an object or null, found " + shown(*value));
    job::RopeScaling unscaled;
    for (const auto& [kind, rope] : value->items()) {
      const std::string name = "rope_parameters." + kind;
      if (rope.is_null()) continue;
      if (!rope.is_object()) r.problem(name, "expected an object or null, found " + shown(rope));
      else if (kind == "full_attention")
        RopeReader(r, name, rope, "rope_theta", r.model.rope_theta, r.model.rope_scaling).read();
      else if (kind == "sliding_attention")
        RopeReader(r, name, rope, local, r.model.attention.sliding_theta, unscaled).read();
      else r.problem(name, "is not known: full_attention and sliding_attention are");
    }
    if (unscaled != job::RopeScaling{})
      r.problem("rope_parameters.sliding_attention",
                "scaled angles of sliding layers are not available yet: leave them as they are");
  };
  const Field base{local,
                   [local, sliding_theta](Reading& r, const json* value) {
                     double& to = r.model.attention.sliding_theta;
                     if (absent(value)) to = sliding_theta;
                     else if (const auto theta_read = read_real(r, local, *value)) to = *theta_read;
                   },
                   [local](Writing& w) {
                     const double own = w.model.attention.sliding_theta;
                     w.out[local] = own > 0 ? own : w.model.rope_theta;
                   }};
  fields.insert(fields.begin() + 1, base);
  return fields;
}

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

void complete_layers(Reading& r) {
  job::ModelOptions& m = r.model;
  if (const std::int64_t rotated = job::rotated_elements(m);
      m.positions == job::Positions::rope &&
      (m.rotary_fraction > 1 || (m.rotary_fraction < 1 && (rotated < 2 || rotated % 2 != 0))))
    r.problem("partial_rotary_factor", "rotates " + std::to_string(rotated) + " elements of a head of " +
                                           std::to_string(m.head_dim) + ": they turn in pairs");
  job::RopeScaling& s = m.rope_scaling;
  const bool relative = s.kind == RopeScalingKind::llama3 || s.kind == RopeScalingKind::yarn;
  if (relative && s.original_max_position == 0) s.original_max_position = m.seq_len;
  if (s.kind == RopeScalingKind::llama3 && s.low_freq_factor >= s.high_freq_factor)
    r.problem("rope_scaling", "low_freq_factor must be less than high_freq_factor");
  if (s.kind == RopeScalingKind::yarn && s.beta_slow >= s.beta_fast)
    r.problem("rope_scaling", "beta_slow must be less than beta_fast");
  job::AttentionOptions& a = m.attention;
  job::settle_scores(m);
  if (a.window == 0) a.pattern.clear(), a.sliding_theta = 0;
  if (s == job::RopeScaling{} && a.sliding_theta == m.rope_theta) a.sliding_theta = 0;
  m.attention.pattern = job::shortest_pattern(m.attention.pattern, m.layers);
}

}  // namespace trainerd::core::hf
