// Keys of scaled rotary angles and of how layers differ.

#include "spec_test_support.h"

namespace trainerd::core {
namespace {

const std::string kRest = "}\nsteps: 1\nbatch: {global: 1, micro: 1}\ndata: {format: synthetic}\n";

std::string layers_job(const std::string& keys) {
  return "model: {layers: 4, hidden: 64, heads: 4, ffn: 64, vocab: 300, seq_len: 64, " + keys + kRest;
}

job::ModelOptions layers_model(const std::string& keys) {
  const job::JobSpec job = spec::parse_job(layers_job(keys), "job.yaml");
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
  return job.model;
}

}  // namespace

TEST_CASE("windows and their pattern are read, and kept in their shortest form", "[spec]") {
  CHECK(layers_model("attention: {window: 16}").attention == job::AttentionOptions{.window = 16});
  CHECK(layers_model("attention: {window: 16, pattern: [sliding, full, sliding, full]}").attention ==
        job::AttentionOptions{.window = 16, .pattern = {"sliding", "full"}});
  CHECK(layers_model("attention: {window: 16, pattern: sliding}").attention ==
        job::AttentionOptions{.window = 16});
  CHECK(layers_model("attention: {window: 16, pattern: [full, sliding], sliding_theta: 100}").attention ==
        job::AttentionOptions{.window = 16, .pattern = {"full", "sliding"}, .sliding_theta = 100});
}

TEST_CASE("scaled rotary angles are read by their kind", "[spec]") {
  CHECK(layers_model("rope_scaling: {kind: yarn, factor: 4, original_max_position: 32, beta_fast: 16}")
            .rope_scaling ==
        job::RopeScaling{
            .kind = job::RopeScalingKind::yarn, .factor = 4, .original_max_position = 32, .beta_fast = 16});
  CHECK(layers_model("rope_scaling: {kind: linear, factor: 2.5}").rope_scaling ==
        job::RopeScaling{.kind = job::RopeScalingKind::linear, .factor = 2.5});
  CHECK(layers_model(
            "rope_scaling: {kind: longrope, factor: 4, original_max_position: 8, short_factor: [1, 1.1, "
            "1.2, 1.3, 1.4, 1.5, 1.6, 1.7], long_factor: [1, 2, 3, 4.75, 5, 6, 7, 8.1]}")
            .rope_scaling == job::RopeScaling{.kind = job::RopeScalingKind::longrope,
                                              .factor = 4,
                                              .original_max_position = 8,
                                              .short_factor = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7},
                                              .long_factor = {1, 2, 3, 4.75, 5, 6, 7, 8.1}});
}

TEST_CASE("keys of Gemma's and OLMo's layers are read, and defaults are left out", "[spec]") {
  const job::ModelOptions gemma = layers_model(
      "norm_placement: sandwich, norm_weight: less_one, mlp: geglu, scale_embeddings: true, qk_norm: true, "
      "attention: {query_pre_attn_scalar: 20, window: 8, sliding_theta: 100}");
  CHECK(gemma.norm_placement == job::NormPlacement::sandwich);
  CHECK(gemma.norm_weight == job::NormWeight::less_one);
  CHECK(gemma.mlp == job::Mlp::geglu);
  CHECK(gemma.scale_embeddings);
  CHECK(gemma.attention ==
        job::AttentionOptions{.query_pre_attn_scalar = 20, .window = 8, .sliding_theta = 100});
  const job::ModelOptions capped = layers_model("logit_softcap: 30, attention: {softcap: 50}");
  CHECK(capped.logit_softcap == 30);
  CHECK(capped.attention == job::AttentionOptions{.softcap = 50});
  const job::ModelOptions sinks = layers_model("rotary_fraction: 0.25, attention: {sinks: true}");
  CHECK(sinks.rotary_fraction == 0.25);
  CHECK(sinks.attention == job::AttentionOptions{.sinks = true});
  CHECK(job::count_parameters(sinks).total - job::count_parameters(layers_model("")).total == 4 * 4);
  const job::ModelOptions olmo = layers_model("norm_placement: post, qk_norm: true, qk_norm_span: all");
  CHECK(olmo.norm_placement == job::NormPlacement::post);
  CHECK(olmo.qk_norm_span == job::QkNormSpan::all);
  const job::ModelOptions granite = layers_model(
      "attention_bias: true, embedding_scale: 12, residual_scale: 0.22, logit_divisor: 8, "
      "attention: {scale: 0.0078125}");
  CHECK((granite.embedding_scale == 12 && granite.residual_scale == 0.22 && granite.logit_divisor == 8));
  CHECK(granite.attention == job::AttentionOptions{.scale = 0.0078125});
  CHECK((granite.attention_bias && granite.qkv_bias && !granite.mlp_bias && !granite.linear_bias));
  // Four layers; biases of 64 queries, keys and values each, and of 64 outputs.
  CHECK(job::count_parameters(granite).total - job::count_parameters(layers_model("")).total == 4 * 4 * 64);
  // A head has 16 elements, so 0.25 is the default scale; all biases together are `bias`.
  CHECK(layers_model("attention: {scale: 0.25}").attention == job::AttentionOptions{});
  const job::ModelOptions biased = layers_model("attention_bias: true, mlp_bias: true");
  CHECK(biased == layers_model("bias: true"));
  CHECK((biased.linear_bias && biased.qkv_bias && biased.mlp_bias));
  // 16 is the size of a head, and 10000 the base of full layers.
  CHECK(layers_model("attention: {query_pre_attn_scalar: 16, window: 8, sliding_theta: 10000}").attention ==
        job::AttentionOptions{.window = 8});
}

TEST_CASE("contradicting keys of layers are reported by name", "[spec]") {
  const auto said = [](const std::string& keys) {
    const Lines lines = problems(layers_job(keys));
    CAPTURE(keys);
    REQUIRE(lines.size() == 1);
    return lines[0].substr(lines[0].find("model."));
  };
  CHECK(said("attention: {window: 8, pattern: [sliding, ful]}") ==
        "model.attention.pattern: has 'ful' where each word is sliding or full (nearest valid: full)");
  CHECK(said("attention: {window: 8, pattern: [full, full]}") ==
        "model.attention.window: has no effect: no layer of attention.pattern slides; leave both out");
  CHECK(said("attention: {window: 8, pattern: [full, full, full, full, sliding]}") ==
        "model.attention.pattern: has 5 words for 4 layers: leave some out");
  CHECK(said("attention: {pattern: [sliding, full]}") ==
        "model.attention.pattern: has no effect: no layer slides without attention.window; leave it out");
  CHECK(said("attention: {window: 8, sliding_theta: 100}, positions: learned") ==
        "model.attention.sliding_theta: has no effect: positions: learned has no rotary angles; leave it "
        "out");
  // Heads have 16 elements.
  CHECK(said("rotary_fraction: 0.2") ==
        "model.rotary_fraction: rotates 3 elements of a head of 16, and they turn in pairs (nearest valid: "
        "0.125)");
  CHECK(said("rotary_fraction: 0") == "model.rotary_fraction: must be greater than 0, got '0'");
  CHECK(said("positions: learned, rotary_fraction: 0.5") ==
        "model.rotary_fraction: has no effect: positions: learned has no rotary angles; leave it out");
  CHECK(said("attention: {softcap: -1}") ==
        "model.attention.softcap: must be at least 0, got '-1' (nearest valid: 0)");
  CHECK(said("qk_norm_span: all") == "model.qk_norm_span: has no effect: there is no qk_norm; leave it out");
  CHECK(said("norm: layer, norm_weight: less_one") ==
        "model.norm_weight: has no effect: only norm: rms has it; leave it out");
  CHECK(said("scale_embeddings: true, embedding_scale: 2") ==
        "model.embedding_scale: is given beside scale_embeddings: true: leave one of them out");
  CHECK(said("attention: {scale: 0.5, query_pre_attn_scalar: 20}") ==
        "model.attention.scale: is given beside query_pre_attn_scalar: leave one of them out");
  CHECK(said("attention_bias: true, qkv_bias: false") ==
        "model.qkv_bias: false contradicts attention_bias: true, which is of queries, keys and values too");
  CHECK(said("bias: false, attention_bias: true, mlp_bias: true") ==
        "model.bias: false contradicts attention_bias: true and mlp_bias: true, which are every bias");
  CHECK(said("bias: true, mlp_bias: false") ==
        "model.mlp_bias: false contradicts bias: true, which puts a bias on every linear layer");
  CHECK(said("positions: learned, scale_embeddings: true") ==
        "model.scale_embeddings: has no effect: positions: learned has none; leave it out");
  CHECK(problems(layers_job("qk_norm: true, qk_norm_span: all"), {"parallel.tp=2"}).empty());
  CHECK(said("rope_scaling: {kind: llama3, factor: 8}") ==
        "model.rope_scaling.original_max_position: is required: tokens of the sequences that the model "
        "began with");
  CHECK(said("rope_scaling: {kind: linear}") ==
        "model.rope_scaling.factor: is 1, which scales nothing: say how many times longer the sequences are, "
        "or leave rope_scaling out");
  CHECK(problems(layers_job("rope_scaling: {kind: yarn, attention_factor: 1.2, original_max_position: 8}"))
            .empty());
  CHECK(said("rope_scaling: {kind: linear, factor: 2, beta_fast: 16}") ==
        "model.rope_scaling.beta_fast: has no effect: only kind: yarn has it; leave it out");
  CHECK(said("rope_scaling: {kind: yarn, factor: 2, original_max_position: 8, beta_fast: 1}") ==
        "model.rope_scaling.beta_slow: must be less than beta_fast");
  CHECK(said("rope_scaling: {kind: longrope, original_max_position: 8, short_factor: [1, 2], long_factor: "
             "[1, 1, "
             "1, 1, 1, 1, 1, 1]}") ==
        "model.rope_scaling.short_factor: has 2 factors; a head has 8 pairs of rotated elements, each with a "
        "factor");
  CHECK(said("rope_scaling: {kind: yarn, factor: 2, original_max_position: 8, long_factor: [1]}") ==
        "model.rope_scaling.long_factor: has no effect: only kind: longrope has it; leave it out");
  CHECK(said("rope_scaling: {kind: yarn, factor: 0.5, original_max_position: 8}") ==
        "model.rope_scaling.factor: must be at least 1, got '0.5' (nearest valid: 1)");
}

TEST_CASE("latent attention is read, and counts as what it is", "[spec]") {
  const std::string sizes = "kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 6, v_head_dim: 10";
  const job::ModelOptions plain = layers_model(""), m = layers_model("mla: {q_lora_rank: 24, " + sizes + "}"),
                          direct = layers_model("mla: {" + sizes + "}");
  CHECK(m.mla == job::MlaOptions{24, 16, 12, 6, 10});
  CHECK(m.head_dim == 18);
  CHECK(m.kv_heads == 4);
  // Four layers of hidden size 64 with four heads. The last projection is 64 x 40.
  const std::int64_t keys = 64 * (16 + 6) + 16 * 4 * (12 + 10), out = 40 * 64;
  const std::int64_t before = 4 * (4 * 64 * 64), latents = 4 * (64 * 24 + 24 * 72 + keys + out);
  CHECK(job::count_parameters(m).matmul - job::count_parameters(plain).matmul == latents - before);
  CHECK(job::count_parameters(m).total - job::count_parameters(plain).total ==
        latents - before + 4 * (24 + 16));
  CHECK(job::count_parameters(direct).matmul - job::count_parameters(plain).matmul ==
        4 * (64 * 72 + keys + out) - before);
  // Scores have 18 elements, and values 10: the mean of both.
  const double scores = 6.0 * 4 * 64 * 4 * (18 + 10) / 2;
  CHECK(job::flops_per_token(m) ==
        Approx(6.0 * static_cast<double>(job::count_parameters(m).matmul) + scores));
  const auto told = [](const std::string& keys_of_job, const std::string& what) {
    const Lines lines = problems(layers_job(keys_of_job));
    CAPTURE(lines, what);
    CHECK(std::any_of(lines.begin(), lines.end(),
                      [&](const std::string& line) { return line.find(what) != std::string::npos; }));
  };
  told("mla: {kv_lora_rank: 16, qk_nope_head_dim: 12, v_head_dim: 10}",
       "model.mla.qk_rope_head_dim: is required with mla.kv_lora_rank");
  told("mla: {kv_lora_rank: 16}", "model.mla.v_head_dim: is required with mla.kv_lora_rank");
  told("mla: {kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 5, v_head_dim: 10}",
       "model.mla.qk_rope_head_dim: 5 is odd, and elements turn in pairs (nearest valid: 6)");
  told("mla: {q_lora_rank: 8}", "has no effect: attention has no latents without mla.kv_lora_rank");
  told("kv_heads: 2, mla: {" + sizes + "}", "model.kv_heads: has no effect: with mla each query head");
  told("head_dim: 8, mla: {" + sizes + "}", "model.head_dim: has no effect: mla.qk_nope_head_dim and");
  told("rotary_fraction: 0.5, mla: {" + sizes + "}",
       "model.rotary_fraction: has no effect: mla.qk_rope_head_dim");
  told("positions: learned, mla: {" + sizes + "}", "needs positions: rope");
  told("qk_norm: true, mla: {" + sizes + "}", "norms of its latents in place of qk_norm");
  told("qkv_bias: true, mla: {" + sizes + "}", "projections without biases");
}

TEST_CASE("groups of experts must be equal, and hold the experts of a token", "[spec]") {
  const job::ModelOptions m = layers_model("experts: {count: 8, per_token: 3, groups: 4, top_groups: 2}");
  CHECK(m.experts == job::ExpertOptions{.count = 8, .per_token = 3, .groups = 4, .top_groups = 2});
  CHECK(layers_model("experts: {count: 8, per_token: 3}").experts.top_groups == 1);
  const auto told = [](const std::string& experts, const std::string& what) {
    const Lines lines = problems(layers_job("experts: {" + experts + "}"));
    CAPTURE(lines, what);
    CHECK(std::any_of(lines.begin(), lines.end(),
                      [&](const std::string& line) { return line.find(what) != std::string::npos; }));
  };
  told("count: 8, per_token: 2, groups: 3, top_groups: 2",
       "model.experts.groups: 8 experts are not 3 equal groups");
  told("count: 8, per_token: 2, groups: 8, top_groups: 4, score: sigmoid",
       "model.experts.groups: leaves one expert in a group");
  told("count: 8, per_token: 2, groups: 4, top_groups: 5",
       "model.experts.top_groups: is more than there are groups (nearest valid: 4)");
  told("count: 8, per_token: 3, groups: 4, top_groups: 1",
       "model.experts.top_groups: leaves 2 experts to choose 3 of (nearest valid: 2)");
  told("count: 8, per_token: 3, top_groups: 2",
       "model.experts.top_groups: has no effect: there is one group");
}

TEST_CASE("experts are read, and count as what they are", "[spec]") {
  const job::ModelOptions dense = layers_model(""), m = layers_model("experts: {count: 8, per_token: 2}");
  CHECK(m.experts == job::ExpertOptions{.count = 8, .per_token = 2, .normalise = true});
  CHECK(!layers_model("experts: {count: 8, per_token: 2, normalise: false}").experts.normalise);
  // Four layers; an MLP has 3 x 64 x 64 weights, a router 8 x 64.
  const std::int64_t mlp = 3 * 64 * 64, router = 8 * 64;
  const job::ParameterCount all = job::count_parameters(m), few = job::count_parameters(dense);
  CHECK(all.total - few.total == 4 * (7 * mlp + router));
  CHECK(all.matmul - few.matmul == 4 * (mlp + router));
  CHECK(job::flops_per_token(m) - job::flops_per_token(dense) == Approx(6.0 * 4 * (mlp + router)));
  // Of the four layers two have experts, of width 16, beside an MLP of width 32 with a factor.
  const job::ModelOptions mixed = layers_model(
      "experts: {count: 8, per_token: 2, ffn: 16, shared_ffn: 32, shared_gate: true, dense_layers: 1, every: "
      "2, "
      "score: sigmoid, bias: true, scale: 2.5}");
  CHECK(mixed.experts == job::ExpertOptions{.count = 8,
                                            .per_token = 2,
                                            .ffn = 16,
                                            .shared_ffn = 32,
                                            .shared_gate = true,
                                            .every = 2,  // the first layer is dense already
                                            .score = job::RouterScore::sigmoid,
                                            .bias = true,
                                            .scale = 2.5});
  CHECK(job::expert_layers(mixed) == 2);
  CHECK(job::expert_layers(mixed, 1, 2) == 1);
  CHECK(job::expert_layers(mixed, 2, 1) == 0);
  const std::int64_t beside = 3 * 64 * 32 + 64 + router, narrow = 3 * 64 * 16;
  CHECK(job::count_parameters(mixed).total - few.total == 2 * (8 * narrow + beside - mlp + 8));
  CHECK(job::count_parameters(mixed).matmul - few.matmul == 2 * (2 * narrow + beside - mlp));
  // Where no layer is dense, the experts' width is the MLP's.
  CHECK(layers_model("experts: {count: 8, per_token: 2, ffn: 64}").experts == m.experts);
  const auto told = [](const std::string& keys, const std::string& more, const std::string& what) {
    const Lines lines = problems(layers_job(keys) + more);
    CAPTURE(lines, what);
    CHECK(std::any_of(lines.begin(), lines.end(),
                      [&](const std::string& line) { return line.find(what) != std::string::npos; }));
  };
  told("experts: {count: 8}", "",
       "model.experts.per_token: is required with experts.count: experts of each token, 1 to 8");
  told("experts: {count: 2, per_token: 3}", "",
       "model.experts.per_token: is more than there are experts (nearest valid: 2)");
  told("experts: {count: 4, per_token: 1}", "",
       "model.experts.normalise: gives a token's only expert the weight 1, whatever the router says");
  told("experts: {count: 513}", "", "model.experts.count: must be at most 512");
  told("experts: {count: 2, per_token: 1, ffn: 16}", "",
       "model.experts.ffn: is the width of every MLP, as all layers have experts: set model.ffn to 16 and "
       "leave "
       "this out");
  told("experts: {count: 2, per_token: 2, dense_layers: 4}", "",
       "model.experts.dense_layers: leaves none of the 4 layers with experts");
  told("experts: {count: 2, per_token: 2, every: 5}", "",
       "model.experts.every: leaves none of the 4 layers with experts");
  told("experts: {count: 2, per_token: 2, shared_gate: true}", "",
       "model.experts.shared_gate: has no effect: there is no MLP of all tokens: shared_ffn is 0");
  told("experts: {count: 2, per_token: 2, scale: 0}", "", "model.experts.scale: must be greater than 0");
  told("experts: {count: 2, per_token: 2, score: tanh}", "", "model.experts.score: ");
  told("experts: {count: 2, per_token: 2, dense_layers: 1, ffn: 18}", "parallel: {tp: 4}\n",
       "parallel.tp: experts.ffn 18 cannot be split evenly over tp 4 (nearest valid: 2); parallel.etp: 1 "
       "leaves "
       "experts whole");
  told("experts: {count: 2, per_token: 2, shared_ffn: 18}", "parallel: {tp: 4}\n",
       "parallel.tp: experts.shared_ffn 18 cannot be split evenly over tp 4 (nearest valid: 2)");
  told("experts: {count: 2, per_token: 2}", "optimizer: {expert_bias_rate: 0.01}\n",
       "optimizer.expert_bias_rate: has no effect: there are no biases without model.experts.bias");
  told("experts: {per_token: 3}", "", "has no effect: the MLPs are dense without experts.count");
  told("mlp: gelu, experts: {count: 2, per_token: 1}", "",
       "model.mlp: must have a gate where there are experts");
  told("mlp_bias: true, experts: {count: 2, per_token: 2, shared_ffn: 16}", "",
       "model.experts.shared_ffn: is of a shared MLP, which has no biases: leave it out");
  told("experts: {logit_bias: true}", "", "has no effect: the MLPs are dense without experts.count");
  told("", "loss: {expert_balance: 0.1}\n", "loss.expert_balance: has no effect: the MLPs are dense");
  const std::string six = "experts: {count: 6, per_token: 2}";
  const auto with = [](const std::string& parallel, const std::string& rest = "") {
    return "parallel: {" + parallel + "}\nthreads: 1\n" + rest;
  };
  told("", with("dp: 2, ep: 2"), "parallel.ep: shares experts, and the model has none (nearest valid: 1)");
  told(six, with("dp: 4, ep: 4"), "6 experts cannot be shared evenly by 4 ranks (nearest valid: 3)");
  told(six, with("dp: 4, ep: 3"), "ep 3 does not divide the 4 ranks that share experts");
  told(six, with("dp: 2, ep: 2, ep_capacity: 0.5"),
       "parallel.ep_capacity: is less than the mean (nearest valid: 1)");
  told(six, with("dp: 2, ep_capacity: 2"), "parallel.ep_capacity: has no effect: without expert parallelism");
  told(six, with("dp: 4, ep: 2, zero_group: 2"), "parallel.ep: is not for hybrid sharding yet");
  const std::string whole = "tp: 2, sequence_parallel: true, etp: 1";
  told("", with(whole), "parallel.etp: is of experts, and the model has none (nearest valid: 0)");
  told(six, with("tp: 2, etp: 1"), "(nearest valid: sequence_parallel: true beside it)");
  CHECK(spec::parse_job(layers_job(six) + with("etp: 1"), "job.yaml").parallel.etp == 0);
  for (const auto& [etp, nearest] : {std::pair{"2", "1"}, {"3", "4"}, {"100", "4"}, {"131072", "4"}})
    told(six, with("tp: 4, sequence_parallel: true, ep: 2, etp: " + std::string(etp)),
         "parallel.etp: experts are cut over all tensor-parallel ranks or none (nearest valid: " +
             std::string(nearest) + ")");
  told(six, with(whole + ", ep: 4"), "ep 4 does not divide the 2 ranks that share experts (tp x cp x dp");
  told(six, with(whole + ", dp: 4, zero_group: 2"), "parallel.etp: is not for hybrid sharding yet");
  told("from: somewhere, experts: {count: 2, per_token: 1}", "lora: {rank: 2, targets: [up_proj]}\n",
       "'up_proj' is not a projection that can be adapted");
}

}  // namespace trainerd::core
