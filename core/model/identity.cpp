#include "core/model/identity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::model {
namespace {

/// The shortest text that gives the same double again, so texts are equal only for equal numbers.
std::string exact_text(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  base::check(error == std::errc(), "32 characters hold any double");
  return {text.data(), end};
}

template <class Enum>
struct Word {
  const char* text;
  Enum value;
};
constexpr std::array kNorms{Word{"rms", job::Norm::rms}, Word{"layer", job::Norm::layer}};
constexpr std::array kPositions{Word{"rope", job::Positions::rope}, Word{"learned", job::Positions::learned}};
constexpr std::array kMlps{Word{"swiglu", job::Mlp::swiglu}, Word{"gelu", job::Mlp::gelu},
                           Word{"geglu", job::Mlp::geglu}, Word{"swiglu_clamped", job::Mlp::swiglu_clamped}};
constexpr std::array kPlacements{Word{"pre", job::NormPlacement::pre}, Word{"post", job::NormPlacement::post},
                                 Word{"sandwich", job::NormPlacement::sandwich}};
constexpr std::array kSpans{Word{"head", job::QkNormSpan::head}, Word{"all", job::QkNormSpan::all}};
constexpr std::array kNormWeights{Word{"factor", job::NormWeight::factor},
                                  Word{"less_one", job::NormWeight::less_one}};
constexpr std::array kScalings{
    Word{"none", job::RopeScalingKind::none}, Word{"linear", job::RopeScalingKind::linear},
    Word{"llama3", job::RopeScalingKind::llama3}, Word{"yarn", job::RopeScalingKind::yarn},
    Word{"longrope", job::RopeScalingKind::longrope}};
constexpr std::array kRouterScores{Word{"softmax", job::RouterScore::softmax},
                                   Word{"sigmoid", job::RouterScore::sigmoid}};
constexpr std::array kFlags{Word{"false", false}, Word{"true", true}};

/// Calls `visit` with the key and value of every option, or `visit_later` for options newer than the first
/// checkpoints: those lack the entry and have the default. Used for both directions.
template <class Model, class Visit, class VisitLater>
void each_option(Model& m, const Visit& visit, const VisitLater& visit_later) {
  visit("model.layers", m.layers);
  visit("model.hidden", m.hidden);
  visit("model.heads", m.heads);
  visit("model.kv_heads", m.kv_heads);
  visit("model.head_dim", m.head_dim);
  visit("model.ffn", m.ffn);
  visit("model.vocab", m.vocab);
  visit("model.seq_len", m.seq_len);
  visit("model.norm", m.norm);
  visit("model.positions", m.positions);
  visit("model.mlp", m.mlp);
  visit("model.bias", m.linear_bias);
  visit("model.qkv_bias", m.qkv_bias);
  visit("model.qk_norm", m.qk_norm);
  visit("model.tie_embeddings", m.tie_embeddings);
  visit("model.rope_theta", m.rope_theta);
  visit("model.norm_eps", m.norm_eps);
  const job::ModelOptions plain;
  visit_later("model.rope_scaling.kind", m.rope_scaling.kind, plain.rope_scaling.kind);
  visit_later("model.rope_scaling.factor", m.rope_scaling.factor, plain.rope_scaling.factor);
  visit_later("model.rope_scaling.original_max_position", m.rope_scaling.original_max_position,
              plain.rope_scaling.original_max_position);
  visit_later("model.rope_scaling.low_freq_factor", m.rope_scaling.low_freq_factor,
              plain.rope_scaling.low_freq_factor);
  visit_later("model.rope_scaling.high_freq_factor", m.rope_scaling.high_freq_factor,
              plain.rope_scaling.high_freq_factor);
  visit_later("model.rope_scaling.beta_fast", m.rope_scaling.beta_fast, plain.rope_scaling.beta_fast);
  visit_later("model.rope_scaling.beta_slow", m.rope_scaling.beta_slow, plain.rope_scaling.beta_slow);
  visit_later("model.rope_scaling.attention_factor", m.rope_scaling.attention_factor,
              plain.rope_scaling.attention_factor);
  visit_later("model.rope_scaling.truncate", m.rope_scaling.truncate, plain.rope_scaling.truncate);
  visit_later("model.rope_scaling.short_factor", m.rope_scaling.short_factor,
              plain.rope_scaling.short_factor);
  visit_later("model.rope_scaling.long_factor", m.rope_scaling.long_factor, plain.rope_scaling.long_factor);
  visit_later("model.norm_placement", m.norm_placement, plain.norm_placement);
  visit_later("model.norm_weight", m.norm_weight, plain.norm_weight);
  visit_later("model.qk_norm_span", m.qk_norm_span, plain.qk_norm_span);
  visit_later("model.scale_embeddings", m.scale_embeddings, plain.scale_embeddings);
  visit_later("model.attention.query_pre_attn_scalar", m.attention.query_pre_attn_scalar,
              plain.attention.query_pre_attn_scalar);
  visit_later("model.attention.window", m.attention.window, plain.attention.window);
  visit_later("model.attention.pattern", m.attention.pattern, plain.attention.pattern);
  visit_later("model.attention.sliding_theta", m.attention.sliding_theta, plain.attention.sliding_theta);
  visit_later("model.attention.sinks", m.attention.sinks, plain.attention.sinks);
  visit_later("model.attention.softcap", m.attention.softcap, plain.attention.softcap);
  visit_later("model.mla.q_lora_rank", m.mla.q_lora_rank, plain.mla.q_lora_rank);
  visit_later("model.mla.kv_lora_rank", m.mla.kv_lora_rank, plain.mla.kv_lora_rank);
  visit_later("model.mla.qk_nope_head_dim", m.mla.qk_nope_head_dim, plain.mla.qk_nope_head_dim);
  visit_later("model.mla.qk_rope_head_dim", m.mla.qk_rope_head_dim, plain.mla.qk_rope_head_dim);
  visit_later("model.mla.v_head_dim", m.mla.v_head_dim, plain.mla.v_head_dim);
  visit_later("model.rotary_fraction", m.rotary_fraction, plain.rotary_fraction);
  visit_later("model.attention_bias", m.attention_bias, m.linear_bias);  // which includes it
  visit_later("model.mlp_bias", m.mlp_bias, m.linear_bias);
  visit_later("model.attention.scale", m.attention.scale, plain.attention.scale);
  visit_later("model.embedding_scale", m.embedding_scale, plain.embedding_scale);
  visit_later("model.residual_scale", m.residual_scale, plain.residual_scale);
  visit_later("model.logit_divisor", m.logit_divisor, plain.logit_divisor);
  visit_later("model.logit_softcap", m.logit_softcap, plain.logit_softcap);
  visit_later("model.experts.count", m.experts.count, plain.experts.count);
  visit_later("model.experts.per_token", m.experts.per_token, plain.experts.per_token);
  visit_later("model.experts.normalise", m.experts.normalise, plain.experts.normalise);
  visit_later("model.experts.ffn", m.experts.ffn, plain.experts.ffn);
  visit_later("model.experts.shared_ffn", m.experts.shared_ffn, plain.experts.shared_ffn);
  visit_later("model.experts.shared_gate", m.experts.shared_gate, plain.experts.shared_gate);
  visit_later("model.experts.dense_layers", m.experts.dense_layers, plain.experts.dense_layers);
  visit_later("model.experts.every", m.experts.every, plain.experts.every);
  visit_later("model.experts.score", m.experts.score, plain.experts.score);
  visit_later("model.experts.groups", m.experts.groups, plain.experts.groups);
  visit_later("model.experts.top_groups", m.experts.top_groups, plain.experts.top_groups);
  visit_later("model.experts.logit_bias", m.experts.logit_bias, plain.experts.logit_bias);
  visit_later("model.experts.bias", m.experts.bias, plain.experts.bias);
  visit_later("model.experts.scale", m.experts.scale, plain.experts.scale);
}

template <class Enum, std::size_t n>
std::string word_of(const std::array<Word<Enum>, n>& words, Enum value) {
  for (const Word<Enum>& word : words)
    if (word.value == value) return word.text;
  return "?";
}
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return exact_text(value); }
std::string text_of(bool value) { return word_of(kFlags, value); }
std::string text_of(job::Norm value) { return word_of(kNorms, value); }
std::string text_of(job::Positions value) { return word_of(kPositions, value); }
std::string text_of(job::Mlp value) { return word_of(kMlps, value); }
std::string text_of(job::NormPlacement value) { return word_of(kPlacements, value); }
std::string text_of(job::QkNormSpan value) { return word_of(kSpans, value); }
std::string text_of(job::NormWeight value) { return word_of(kNormWeights, value); }
std::string text_of(job::RopeScalingKind value) { return word_of(kScalings, value); }
std::string text_of(job::RouterScore value) { return word_of(kRouterScores, value); }
std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : " ") + exact_text(value);
  return text;
}

template <class Enum, std::size_t n>
bool read_word(const std::array<Word<Enum>, n>& words, const std::string& text, Enum& value) {
  for (const Word<Enum>& word : words)
    if (text == word.text) return value = word.value, true;
  return false;
}
template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
bool read(const std::string& text, std::int64_t& value) { return read_number(text, value) && value > 0; }
bool read(const std::string& text, double& value) { return read_number(text, value) && value > 0; }
bool read(const std::string& text, bool& value) { return read_word(kFlags, text, value); }
bool read(const std::string& text, job::Norm& value) { return read_word(kNorms, text, value); }
bool read(const std::string& text, job::Positions& value) { return read_word(kPositions, text, value); }
bool read(const std::string& text, job::Mlp& value) { return read_word(kMlps, text, value); }
bool read(const std::string& text, job::NormPlacement& value) { return read_word(kPlacements, text, value); }
bool read(const std::string& text, job::QkNormSpan& value) { return read_word(kSpans, text, value); }
bool read(const std::string& text, job::NormWeight& value) { return read_word(kNormWeights, text, value); }
bool read(const std::string& text, job::RopeScalingKind& value) { return read_word(kScalings, text, value); }
bool read(const std::string& text, job::RouterScore& value) { return read_word(kRouterScores, text, value); }
bool read(const std::string& text, std::vector<std::string>& words) {
  words.clear();
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word != job::kSliding && word != job::kFull) return false;
    words.push_back(word);
  }
  return !words.empty();
}
bool read(const std::string& text, std::vector<double>& values) {
  values.clear();
  std::istringstream in(text);
  for (std::string word; in >> word;)
    if (!read(word, values.emplace_back())) return false;
  return !values.empty();
}

}  // namespace

std::map<std::string, std::string> model_identity(const job::ModelOptions& model) {
  std::map<std::string, std::string> identity;
  job::ModelOptions settled = model;
  job::settle_biases(settled);
  job::settle_experts(settled);
  each_option(
      std::as_const(settled), [&](const char* key, const auto& value) { identity[key] = text_of(value); },
      [&](const char* key, const auto& value, const auto& fallback) {
        if (value != fallback) identity[key] = text_of(value);
      });
  return identity;
}

job::ModelOptions model_of(const std::map<std::string, std::string>& identity, const std::string& path) {
  job::ModelOptions model;
  const auto take = [&](const char* key, const std::string& text, auto& value) {
    if (!read(text, value))
      throw base::checkpoint_error(path + ": " + key + " is \"" + text +
                                   "\", which this version does not know");
  };
  each_option(
      model,
      [&](const char* key, auto& value) {
        const auto found = identity.find(key);
        if (found == identity.end())
          throw base::checkpoint_error(
              path + ": does not say " + key +
              ", so it was written by an older version: go on with the run for a step by "
              "this one, which writes a checkpoint that does");
        take(key, found->second, value);
      },
      [&](const char* key, auto& value, const auto& fallback) {
        if (const auto found = identity.find(key); found != identity.end()) take(key, found->second, value);
        else value = fallback;
      });
  return model;
}

std::map<std::string, std::string> lora_identity(const job::LoraOptions& lora) {
  if (!lora.on()) return {};
  std::string targets;
  for (const std::string& target : lora.targets) targets += (targets.empty() ? "" : " ") + target;
  return {{"lora.rank", text_of(lora.rank)}, {"lora.alpha", text_of(lora.alpha)}, {"lora.targets", targets}};
}

job::LoraOptions lora_of(const std::map<std::string, std::string>& identity, const std::string& path) {
  job::LoraOptions lora;
  const auto rank = identity.find("lora.rank"), alpha = identity.find("lora.alpha"),
             targets = identity.find("lora.targets");
  if (rank == identity.end()) return lora;
  const auto refuse = [&](const std::string& key) {
    throw base::checkpoint_error(path + ": " + key + " is missing or damaged: take another checkpoint");
  };
  if (!read(rank->second, lora.rank)) refuse("lora.rank");
  if (alpha == identity.end() || !read(alpha->second, lora.alpha)) refuse("lora.alpha");
  if (targets == identity.end()) refuse("lora.targets");
  std::istringstream words(targets->second);
  for (std::string word; words >> word;) {
    const auto among = [&](const auto& names) {
      return std::find(names.begin(), names.end(), word) != names.end();
    };
    if (!among(job::kProjections) && !among(job::kMergedProjections) && !among(job::kGpt2Projections) &&
        !among(job::kLatentProjections))
      refuse("lora.targets");
    lora.targets.push_back(word);
  }
  return lora;
}

}  // namespace trainerd::core::model
