// Fields of a config.json that say how rotary angles are scaled.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
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
    case RopeScalingKind::longrope: return "longrope";
  }
  return "default";
}

/// One object of `rope_scaling` (transformers 4) or `rope_parameters` (5).
class RopeReader {
 public:
  /// `top`: the field at the top of the file that says the base too; where both are read into is given.
  /// `heads`: whether parts of heads may be rotated, which `partial_rotary_factor` says here or at the top.
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
    const bool longrope = s_.kind == RopeScalingKind::longrope;
    if (absent(factor) && longrope) s_.factor = 0;  // for `complete` to fill
    else if (absent(factor)) return r_.problem(name_, "factor is missing");
    else if (s_.factor < 1) return r_.problem(name_, "factor " + shown(*factor) + " is less than 1");
    if (s_.attention_factor == 0 && mscale_ > 0 && mscale_all_ > 0) {
      const double angles = of_mscale(mscale_) / of_mscale(mscale_all_);
      // The factor of a file that says none.
      const bool usual = std::abs(angles - of_mscale(1)) <= 1e-11 * angles;
      s_.attention_factor = usual ? 0 : angles;
    }
    // Scaled by one is not scaled, unless cos and sin are.
    if (s_.factor == 1 && s_.attention_factor == 0 && !longrope) s_ = {};
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
         {RopeScalingKind::linear, RopeScalingKind::llama3, RopeScalingKind::yarn, RopeScalingKind::longrope})
      if (*type == word_of(kind)) s_.kind = kind;
    if (s_.kind != RopeScalingKind::none) return true;
    r_.problem(name_, shown(*type) +
                          " scaling of rotary positions is not available yet: default, linear, "
                          "llama3, yarn and longrope are");
    return false;
  }
  double of_mscale(double mscale) const {
    return s_.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(s_.factor) + 1.0;
  }
  /// A factor for each pair.
  void reals(const std::string& key, const json& value, std::vector<double>& to) {
    if (!value.is_array())
      return r_.problem(name_ + "." + key, "expected a list of numbers, found " + shown(value));
    for (const json& item : value) real(key, item, to.emplace_back());
  }
  void real(const std::string& key, const json& value, double& to) {
    if (const auto read = read_real(r_, name_ + "." + key, value)) to = *read;
  }

  /// Whether the kind has such a key.
  bool take(const std::string& key, const json& value) {
    const bool llama3 = s_.kind == RopeScalingKind::llama3, yarn = s_.kind == RopeScalingKind::yarn,
               longrope = s_.kind == RopeScalingKind::longrope;
    if (key == "rope_type" || key == "type") return true;
    if (key == "rope_theta") return theta(value), true;
    if (key == "partial_rotary_factor") return fraction(value), true;
    if (key == "factor" && s_.kind != RopeScalingKind::none) return real(key, value, s_.factor), true;
    if (key == "original_max_position_embeddings" && (llama3 || yarn || longrope)) {
      if (const auto size = read_size(r_, name_ + "." + key, value)) s_.original_max_position = *size;
      return true;
    }
    if (key == "low_freq_factor" && llama3) return real(key, value, s_.low_freq_factor), true;
    if (key == "high_freq_factor" && llama3) return real(key, value, s_.high_freq_factor), true;
    if (key == "short_factor" && longrope) return reals(key, value, s_.short_factor), true;
    if (key == "long_factor" && longrope) return reals(key, value, s_.long_factor), true;
    if (key == "attention_factor" && longrope) return real(key, value, s_.attention_factor), true;
    if (!yarn) return false;
    if (key == "beta_fast") return real(key, value, s_.beta_fast), true;
    if (key == "beta_slow") return real(key, value, s_.beta_slow), true;
    if (key == "attention_factor") return real(key, value, s_.attention_factor), true;
    if ((key == "mscale" || key == "mscale_all_dim") && value == 0) return true;  // none
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

/// In the spelling of transformers 4; null where nothing is scaled.
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
  if (s.kind == RopeScalingKind::longrope) {
    rope["short_factor"] = s.short_factor, rope["long_factor"] = s.long_factor;
    if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  }
  return rope;
}

void complete_longrope(Reading& r) {
  job::RopeScaling& s = r.model.rope_scaling;
  if (s.original_max_position < 2)
    return r.problem("rope_scaling", "original_max_position_embeddings must be 2 or more with longrope");
  if (s.factor == 0)
    s.factor =
        std::max(1.0, static_cast<double>(r.model.seq_len) / static_cast<double>(s.original_max_position));
  const std::int64_t pairs = job::rotated_elements(r.model) / 2;
  const auto check = [&](const char* name, const std::vector<double>& factors) {
    if (std::cmp_not_equal(factors.size(), pairs))
      r.problem("rope_scaling", std::string(name) + " has " + std::to_string(factors.size()) +
                                    " factors; a head has " + std::to_string(pairs) +
                                    " pairs of rotated elements, each with a factor");
    if (std::any_of(factors.begin(), factors.end(), [](double factor) { return !(factor > 0); }))
      r.problem("rope_scaling", std::string(name) + " has a factor that is not greater than 0");
  };
  check("short_factor", s.short_factor);
  check("long_factor", s.long_factor);
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
  // transformers 5 reads the spelling of 4, and not the other way round.
  return {
      real_field("rope_theta", &job::ModelOptions::rope_theta, 10000.0),
      // Before the other two, which may say it as well.
      parts ? real_field(part, &job::ModelOptions::rotary_fraction, *rotary_fraction)
            : fixed_field(part, {nullptr, 1.0}, "the family rotates the whole of each head"),
      {"rope_scaling", scaling("rope_scaling"),
       [](Writing& w) { w.out["rope_scaling"] = scaling_json(w.model.rope_scaling); }},
      {"rope_parameters", scaling("rope_parameters"), [](Writing&) {}},
  };
}

std::vector<Field> longrope_fields(std::optional<double> rotary_fraction) {
  const std::string original = "original_max_position_embeddings";
  std::vector<Field> fields = rope_fields(rotary_fraction);
  for (Field& field : fields) {
    if (field.name != "rope_scaling" && field.name != "rope_parameters") continue;
    field.read = [name = field.name, read = field.read](Reading& r, const json* value) {
      // Its older names in this family.
      json renamed = absent(value) ? json() : *value;
      if (renamed.is_object())
        for (const char* key : {"rope_type", "type"})
          if (const json* type = find(renamed, key); type != nullptr && (*type == "su" || *type == "yarn"))
            renamed[key] = "longrope";
      read(r, absent(value) ? value : &renamed);
      const RopeScalingKind kind = r.model.rope_scaling.kind;
      if (kind != RopeScalingKind::none && kind != RopeScalingKind::longrope)
        r.problem(name, std::string("the family has longrope scaling alone, not ") + word_of(kind));
    };
    if (field.name == "rope_scaling")
      field.write = [](Writing& w) {
        const job::RopeScaling& s = w.model.rope_scaling;
        json rope = scaling_json(s);
        // transformers 4 takes the three alone, and the factor from the two lengths.
        if (s.kind == RopeScalingKind::longrope) {
          const double longest = w.out["max_position_embeddings"].get<double>();
          rope["type"] = rope["rope_type"];
          for (const char* key : {"rope_type", "original_max_position_embeddings"}) rope.erase(key);
          if (longest == s.factor * static_cast<double>(s.original_max_position)) rope.erase("factor");
        }
        w.out["rope_scaling"] = rope;
      };
  }
  fields.push_back({original,
                    [original](Reading& r, const json* value) {
                      if (r.model.rope_scaling.kind != RopeScalingKind::longrope) return;
                      std::int64_t& to = r.model.rope_scaling.original_max_position;
                      if (absent(value)) to = 4096;  // as transformers, whatever the scaling says
                      else if (const auto size = read_size(r, original, *value)) to = *size;
                    },
                    [original](Writing& w) {
                      const job::RopeScaling& s = w.model.rope_scaling;
                      if (s.kind == RopeScalingKind::longrope) w.out[original] = s.original_max_position;
                      else keep(w, original);
                    }});
  return fields;
}

namespace {

/// YaRN's factor for this mscale. Scores are multiplied by its square.
double of_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}
/// Rounded to 12 digits, so that 1 is written as 1 after a round trip.
double rounded(double x) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.12g", x);
  return std::strtod(digits.data(), nullptr);
}

}  // namespace

std::vector<Field> latent_rope_fields() {
  std::vector<Field> fields = rope_fields();
  for (Field& field : fields) {
    if (field.name != "rope_scaling" && field.name != "rope_parameters") continue;
    field.read = [read = field.read](Reading& r, const json* value) {
      read(r, value);
      job::ModelOptions& m = r.model;
      if (absent(value) || !value->is_object() || m.rope_scaling.kind != RopeScalingKind::yarn) return;
      const json* all = find(*value, "mscale_all_dim");
      if (absent(all) || !all->is_number() || *all == 0) return;
      const double scale = of_mscale(m.rope_scaling.factor, all->get<double>());
      const auto head = static_cast<double>(m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim);
      m.attention.scale = scale * scale / std::sqrt(head);
    };
    if (field.name == "rope_scaling")
      field.write = [](Writing& w) {
        const job::ModelOptions& m = w.model;
        json rope = scaling_json(m.rope_scaling);
        if (m.rope_scaling.kind == RopeScalingKind::yarn && m.attention.scale > 0 &&
            m.rope_scaling.factor > 1) {
          const double each = 0.1 * std::log(m.rope_scaling.factor),
                       scale = std::sqrt(m.attention.scale * std::sqrt(static_cast<double>(m.head_dim))),
                       all = rounded((scale - 1) / each);
          if (all > 0) rope["mscale_all_dim"] = all;
          // As in DeepSeek's own files, if the two can say it: other programs know no attention_factor.
          const double factor = m.rope_scaling.attention_factor,
                       angles = rounded(((factor > 0 ? factor : each + 1) * scale - 1) / each);
          if (all > 0 && angles > 0) {
            rope.erase("attention_factor");
            rope["mscale"] = angles;
          }
        }
        w.out["rope_scaling"] = rope;
      };
  }
  return fields;
}

std::vector<Field> two_rope_fields(double theta, double sliding_theta) {
  std::vector<Field> fields = rope_fields();
  fields[0] = real_field("rope_theta", &job::ModelOptions::rope_theta, theta);
  const std::string local = "rope_local_base_freq";
  // transformers 5: an object for each kind of layer.
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

std::vector<Field> full_rope_fields(double theta) {
  std::vector<Field> fields = two_rope_fields(theta, 0);
  Field base = fields[1];
  fields.erase(fields.begin() + 1);
  // After `rope_parameters`, which may have a base for sliding layers.
  base.read = [theta](Reading& r, const json*) {
    double& to = r.model.attention.sliding_theta;
    if (to > 0) return;
    to = theta;
    if (r.model.rope_theta != theta)
      r.problem("rope_theta", "is " + shown(r.model.rope_theta) +
                                  ", and of sliding layers nothing is said: versions of transformers differ; "
                                  "state both in rope_parameters");
  };
  base.write = [](Writing&) {};
  // transformers 5 takes the base of sliding layers from here alone.
  for (Field& field : fields)
    if (field.name == "rope_parameters")
      field.write = [](Writing& w) {
        const auto of = [&](const json& scaling) {
          json rope = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
          rope["rope_theta"] = w.model.rope_theta;
          return rope;
        };
        w.out["rope_parameters"] = {{"full_attention", of(scaling_json(w.model.rope_scaling))},
                                    {"sliding_attention", of(nullptr)}};
      };
  fields.push_back(base);
  return fields;
}

std::vector<Field> rotary_dim_fields(double theta) {
  std::vector<Field> fields = rope_fields(1.0);
  fields[0] = real_field("rope_theta", &job::ModelOptions::rope_theta, theta);
  const std::string name = "rotary_dim", part = "partial_rotary_factor";
  fields.push_back(
      {name,
       [name, part](Reading& r, const json* value) {
         if (absent(value)) return;
         const json* rope = find(r.json, "rope_parameters");
         if (find(r.json, part) != nullptr || (!absent(rope) && rope->is_object() && rope->contains(part)))
           return;
         if (const auto size = read_size(r, name, *value); size && r.model.head_dim > 0)
           r.model.rotary_fraction = static_cast<double>(*size) / static_cast<double>(r.model.head_dim);
       },
       [](Writing&) {}});
  return fields;
}

void complete_rope(Reading& r) {
  job::ModelOptions& m = r.model;
  if (const std::int64_t rotated = job::rotated_elements(m);
      m.positions == job::Positions::rope &&
      (m.rotary_fraction > 1 || (m.rotary_fraction < 1 && (rotated < 2 || rotated % 2 != 0))))
    r.problem("partial_rotary_factor", "rotates " + std::to_string(rotated) + " elements of a head of " +
                                           std::to_string(m.head_dim) + ": they turn in pairs");
  job::RopeScaling& s = m.rope_scaling;
  const bool longrope = s.kind == RopeScalingKind::longrope,
             relative = s.kind == RopeScalingKind::llama3 || s.kind == RopeScalingKind::yarn || longrope;
  if (relative && s.original_max_position == 0) s.original_max_position = m.seq_len;
  if (longrope) complete_longrope(r);
  if (s.kind == RopeScalingKind::llama3 && s.low_freq_factor >= s.high_freq_factor)
    r.problem("rope_scaling", "low_freq_factor must be less than high_freq_factor");
  if (s.kind == RopeScalingKind::yarn && s.beta_slow >= s.beta_fast)
    r.problem("rope_scaling", "beta_slow must be less than beta_fast");
}

}  // namespace trainerd::core::hf
