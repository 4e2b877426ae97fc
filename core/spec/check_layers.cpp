#include "core/spec/check_layers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <utility>

#include "core/spec/problems.h"
#include "kernels/target/cuda_limits.h"

namespace trainerd::core::spec {
namespace {

using job::RopeScalingKind;
using std::to_string;

std::string plain(double x) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr};
}

class LayerChecker {
 public:
  explicit LayerChecker(const job::ModelOptions& model) : m_(model) {}

  std::vector<KeyProblem> run() {
    rotary();
    latents();
    rope_scaling();
    windows();
    experts();
    return std::move(problems_);
  }

 private:
  void problem(const char* path, const std::string& what) { problems_.push_back({path, what}); }

  void rotary() {
    const std::int64_t rotated = job::rotated_elements(m_);
    if (m_.positions != job::Positions::rope || m_.mla.on() || m_.head_dim < 2 || m_.head_dim % 2 != 0)
      return;
    if (rotated >= 2 && rotated % 2 == 0) return;
    const std::int64_t near = std::max<std::int64_t>(2, rotated - rotated % 2);
    problem("model.rotary_fraction",
            "rotates " + to_string(rotated) + " elements of a head of " + to_string(m_.head_dim) +
                ", and they turn in pairs (nearest valid: " +
                plain(static_cast<double>(near) / static_cast<double>(m_.head_dim)) + ")");
  }

  void latents() {
    const job::MlaOptions& a = m_.mla;
    if (!a.on()) return;
    for (const auto& [path, size, what] :
         {std::tuple{"model.mla.qk_nope_head_dim", a.qk_nope_head_dim, "elements that are not rotated"},
          {"model.mla.qk_rope_head_dim", a.qk_rope_head_dim, "elements that are rotated"},
          {"model.mla.v_head_dim", a.v_head_dim, "elements of a value head"}})
      if (size < 1) problem(path, std::string("is required with mla.kv_lora_rank: ") + what);
    if (a.qk_rope_head_dim % 2 != 0)
      problem("model.mla.qk_rope_head_dim", to_string(a.qk_rope_head_dim) +
                                                " is odd, and elements turn in pairs (nearest valid: " +
                                                to_string(a.qk_rope_head_dim + 1) + ")");
  }

  void rope_scaling() {
    const job::RopeScaling& s = m_.rope_scaling;
    const bool llama3 = s.kind == RopeScalingKind::llama3, yarn = s.kind == RopeScalingKind::yarn,
               longrope = s.kind == RopeScalingKind::longrope;
    if (s.kind != RopeScalingKind::none && s.factor == 1.0 && !longrope && !(yarn && s.attention_factor > 0))
      problem("model.rope_scaling.factor",
              "is 1, which scales nothing: say how many times longer the sequences are, or leave "
              "rope_scaling out");
    if ((llama3 || yarn || longrope) && s.original_max_position == 0)
      problem("model.rope_scaling.original_max_position",
              "is required: tokens of the sequences that the model began with");
    if (llama3 && s.low_freq_factor >= s.high_freq_factor)
      problem("model.rope_scaling.low_freq_factor", "must be less than high_freq_factor");
    if (yarn && s.beta_slow >= s.beta_fast)
      problem("model.rope_scaling.beta_slow", "must be less than beta_fast");
    if (longrope) pair_factors();
  }

  void pair_factors() {
    const job::RopeScaling& s = m_.rope_scaling;
    if (s.original_max_position == 1)
      problem("model.rope_scaling.original_max_position", "must be 2 or more with longrope");
    const auto pairs = job::rotated_elements(m_) / 2;
    const auto check = [&](const char* path, const std::vector<double>& factors) {
      if (std::cmp_not_equal(factors.size(), pairs))
        problem(path, "has " + to_string(factors.size()) + " factors; a head has " + to_string(pairs) +
                          " pairs of rotated elements, each with a factor");
    };
    if (m_.positions != job::Positions::rope || pairs < 1) return;
    check("model.rope_scaling.short_factor", s.short_factor);
    check("model.rope_scaling.long_factor", s.long_factor);
  }

  void windows() {
    const job::AttentionOptions& a = m_.attention;
    if (a.window == 0) return;
    for (const std::string& word : a.pattern)
      if (word != job::kSliding && word != job::kFull) {
        const std::string near = nearest(word, {job::kSliding, job::kFull});
        return problem("model.attention.pattern", "has " + show(word) +
                                                      " where each word is sliding or full" +
                                                      (near.empty() ? "" : " (nearest valid: " + near + ")"));
      }
    if (m_.layers > 0 && std::cmp_greater(a.pattern.size(), m_.layers))
      return problem("model.attention.pattern", "has " + to_string(a.pattern.size()) + " words for " +
                                                    to_string(m_.layers) + " layers: leave some out");
    if (!a.pattern.empty() && std::find(a.pattern.begin(), a.pattern.end(), job::kSliding) == a.pattern.end())
      problem("model.attention.window",
              "has no effect: no layer of attention.pattern slides; leave both out");
  }

  void experts() {
    const job::ExpertOptions& e = m_.experts;
    if (!e.on()) return;
    if (e.per_token < 1)
      problem("model.experts.per_token",
              "is required with experts.count: experts of each token, 1 to " + to_string(e.count));
    else if (e.per_token > e.count)
      problem("model.experts.per_token",
              "is more than there are experts (nearest valid: " + to_string(e.count) + ")");
    else if (e.per_token == 1 && e.count > 1 && e.normalise && m_.from.empty())
      problem("model.experts.normalise",
              "gives a token's only expert the weight 1, whatever the router says, so that the router learns "
              "nothing: set normalise: false");
    groups();
    const std::int64_t layers = job::expert_layers(m_);
    if (m_.layers > 0 && layers == 0)
      problem(e.dense_layers >= m_.layers ? "model.experts.dense_layers" : "model.experts.every",
              "leaves none of the " + to_string(m_.layers) + " layers with experts");
    if (m_.layers > 0 && layers == m_.layers && e.ffn > 0 && e.ffn != m_.ffn)
      problem("model.experts.ffn",
              "is the width of every MLP, as all layers have experts: set model.ffn to " + to_string(e.ffn) +
                  " and leave this out");
    if (!job::gated(m_.mlp))
      problem("model.mlp",
              "must have a gate where there are experts: set it to swiglu, geglu or swiglu_clamped");
    if (e.shared_ffn > 0 && (m_.mlp_bias || m_.linear_bias))
      problem("model.experts.shared_ffn",
              "is of a shared MLP, which has no biases: leave it out, or mlp_bias (and bias)");
  }

  void groups() {
    const job::ExpertOptions& e = m_.experts;
    if (e.groups == 1) return;
    const std::int64_t each = e.count / e.groups;
    const bool sums_two = e.score == job::RouterScore::sigmoid;
    if (e.count % e.groups != 0)
      problem("model.experts.groups",
              to_string(e.count) + " experts are not " + to_string(e.groups) + " equal groups");
    else if (sums_two && each < 2)
      problem("model.experts.groups",
              "leaves one expert in a group, and with score: sigmoid a group is judged "
              "by its two best (nearest valid: " +
                  to_string(e.count / 2) + ")");
    else if (e.top_groups > e.groups)
      problem("model.experts.top_groups",
              "is more than there are groups (nearest valid: " + to_string(e.groups) + ")");
    else if (e.top_groups * each < e.per_token)
      problem("model.experts.top_groups",
              "leaves " + to_string(e.top_groups * each) + " experts to choose " + to_string(e.per_token) +
                  " of (nearest valid: " + to_string((e.per_token + each - 1) / each) + ")");
  }

  const job::ModelOptions& m_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::vector<KeyProblem> layer_problems(const job::ModelOptions& model) { return LayerChecker(model).run(); }

std::vector<KeyProblem> cuda_head_problems(const job::ModelOptions& m) {
  const std::int64_t keys = m.head_dim, values = job::value_head_dim(m), most = kernels::kLargestCudaHead;
  if (std::max(keys, values) <= most) return {};
  const std::string more = " is more than the " + to_string(most) + " that device: cuda computes: ";
  if (!m.mla.on())
    return {{"model.head_dim", "head_dim " + to_string(keys) + more + "choose more heads, or device: cpu"}};
  if (values > most)
    return {{"model.mla.v_head_dim", to_string(values) + more + "make it smaller, or choose device: cpu"}};
  return {{"model.mla.qk_nope_head_dim",
           "with qk_rope_head_dim " + to_string(keys) + more + "make it smaller, or choose device: cpu"}};
}

std::vector<KeyProblem> turns_problems(const parallel::ParallelOptions& p) {
  if (!p.takes_turns() || p.zero != 3) return {};
  return {{"parallel.zero",
           "gathers the parameters of one pass at a time, and with schedule: dualpipe-v two take turns "
           "(nearest valid: 2)"}};
}

std::vector<KeyProblem> offload_problems(const job::JobSpec& job) {
  const parallel::ParallelOptions& p = job.parallel;
  std::vector<KeyProblem> problems;
  if (p.offload_params && p.zero < 3)
    problems.push_back(
        {"parallel.offload_params",
         "offloads parameters by layers, as zero 3 shards them, also with one data-parallel rank "
         "(nearest valid: zero: 3 beside it)"});
  if (p.offload_grads && p.zero < 2)
    problems.push_back(
        {"parallel.offload_grads",
         "offloads gradients by layers, as zero 2 and 3 shard them, also with one data-parallel "
         "rank (nearest valid: zero: 2 beside it)"});
  if (p.offload_grads && p.zero_group > 0 && p.zero_group < p.gradient_ranks())
    problems.push_back(
        {"parallel.offload_grads",
         "replicas (zero_group) sum their gradients on devices (nearest valid: zero_group: 0, or "
         "offload_params and optimizer.offload without offload_grads)"});
  if (p.offload_activations && job.recompute.kind != job::RecomputeKind::full)
    problems.push_back(
        {"parallel.offload_activations",
         "offloads the inputs of layers, which are all that recompute: {kind: full} keeps of them "
         "(nearest valid: that beside it)"});
  return problems;
}

std::vector<KeyProblem> expert_parallel_problems(const job::JobSpec& job) {
  const parallel::ParallelOptions& p = job.parallel;
  const std::int64_t count = job.model.experts.count;
  std::vector<KeyProblem> problems;
  if (p.whole_experts() && count == 0)
    problems.push_back({"parallel.etp", "is of experts, and the model has none (nearest valid: 0)"});
  else if (p.whole_experts() && !p.sequence_parallel)
    problems.push_back({"parallel.etp",
                        "with whole experts each tensor-parallel rank sends its own tokens, which it has "
                        "with sequence parallelism (nearest valid: sequence_parallel: true beside it)"});
  if (p.ep <= 1) return problems;
  if (count == 0) {
    problems.push_back({"parallel.ep", "shares experts, and the model has none (nearest valid: 1)"});
    return problems;
  }
  std::int64_t fits = std::min(p.ep, count);
  while (count % fits != 0) --fits;
  if (fits != p.ep)
    problems.push_back({"parallel.ep", to_string(count) + " experts cannot be shared evenly by " +
                                           to_string(p.ep) + " ranks (nearest valid: " + to_string(fits) +
                                           ")"});
  if (p.ep_capacity > 0 && p.ep_capacity < 1)
    problems.push_back({"parallel.ep_capacity", "is less than the mean (nearest valid: 1)"});
  if (p.ep_comm == parallel::ExpertComm::all_to_all && p.ep_capacity == 0)
    problems.push_back({"parallel.ep_comm",
                        "all_to_all sends as many tokens as parallel.ep_capacity allows, which is "
                        "0: set it, to 1.5 for example"});
  return problems;
}

void settle_model(job::ModelOptions& m) {
  const bool rope = m.positions == job::Positions::rope;
  if (!rope) m.rope_theta = job::ModelOptions{}.rope_theta, m.rotary_fraction = 1;
  job::settle_biases(m);
  job::settle_experts(m);
  if (m.experts.groups == 1) m.experts.top_groups = 1;
  if (m.mla.on()) m.rotary_fraction = 1, job::settle_mla(m);
  else m.mla = {};
  // Resets options that the kind does not use.
  job::RopeScaling settled;
  const job::RopeScaling& s = m.rope_scaling;
  if (rope && s.kind != RopeScalingKind::none) {
    settled.kind = s.kind, settled.factor = s.factor;
    if (s.kind != RopeScalingKind::linear) settled.original_max_position = s.original_max_position;
    if (s.kind == RopeScalingKind::llama3)
      settled.low_freq_factor = s.low_freq_factor, settled.high_freq_factor = s.high_freq_factor;
    if (s.kind == RopeScalingKind::yarn) {
      settled.beta_fast = s.beta_fast, settled.beta_slow = s.beta_slow;
      settled.attention_factor = s.attention_factor, settled.truncate = s.truncate;
    }
    if (s.kind == RopeScalingKind::longrope) {
      settled.attention_factor = s.attention_factor;
      settled.short_factor = s.short_factor, settled.long_factor = s.long_factor;
    }
  }
  m.rope_scaling = settled;
  if (!m.qk_norm) m.qk_norm_span = job::QkNormSpan::head;
  if (m.norm != job::Norm::rms) m.norm_weight = job::NormWeight::factor;
  if (!rope) m.scale_embeddings = false, m.embedding_scale = 1;
  job::settle_scores(m);
  if (m.attention.window == 0) m.attention.pattern.clear(), m.attention.sliding_theta = 0;
  if (!rope) m.attention.sliding_theta = 0;
  // A theta equal to the model's is redundant.
  if (settled == job::RopeScaling{} && m.attention.sliding_theta == m.rope_theta)
    m.attention.sliding_theta = 0;
  m.attention.pattern = job::shortest_pattern(m.attention.pattern, m.layers);
}

}  // namespace trainerd::core::spec
