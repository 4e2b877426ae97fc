#include <cmath>
#include <map>

#include "spec_test_support.h"

namespace trainerd::core {
namespace {

job::JobSpec preset_job(const std::string& preset) {
  return spec::parse_job(
      "model: {preset: " + preset +
          "}\nsteps: 10\nbatch: {global: 4, micro: 1}\ndata: {train: a.bin, format: tokens}\n",
      "job.yaml");
}

TEST_CASE("every preset has the published number of parameters", "[spec]") {
  // GPT-2, Llama, Qwen, Mistral, Gemma, OLMo and StableLM: elements of the published weights. GPT-3's
  // published number is rounded.
  const std::map<std::string, std::int64_t> published = {
      {"gpt2-124m", 124439808},
      {"gpt2-350m", 354823168},
      {"gpt2-774m", 774030080},
      {"gpt2-1558m", 1557611200},
      {"llama-3-8b", 8030261248},
      {"llama-3-70b", 70553706496},
      {"llama-3-405b", 405853388800},
      {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},
      {"llama-3.1-8b", 8030261248},
      {"llama-3.1-70b", 70553706496},
      {"llama-3.3-70b", 70553706496},
      {"llama-3.2-1b", 1235814400},
      {"llama-3.2-3b", 3212749824},
      {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},
      {"mistral-7b", 7241732096},
      {"mistral-7b-v0.3", 7248023552},
      {"gemma-3-270m", 268098176},
      {"gemma-3-1b", 999885952},
      {"olmo-2-1b", 1484916736},
      {"olmo-2-7b", 7298617344},
      {"olmo-2-13b", 13716198400},
      {"gemma-2-2b", 2614341888},
      {"gemma-2-9b", 9241705984},
      {"gemma-2-27b", 27227128320},
      {"stablelm-3b", 2795443200},
      {"stablelm-2-1.6b", 1644515328},
      {"qwen2.5-14b", 14770033664},
      {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},
      {"olmo-2-32b", 32234279936},
      {"mixtral-8x7b", 46702792704},
      {"mixtral-8x22b", 140620634112},
      {"qwen3-30b-a3b", 30532122624},
      {"qwen3-235b-a22b", 235093634560},
      {"olmoe-1b-7b", 6919161856},
      {"llama-3.1-405b", 405853388800},
      // Gemma 3 with vision (4300079472, 12187325040 and 27432406640 elements), minus 416866032 elements of
      // vision and the projection from its 1152 columns.
      {"gemma-3-4b", 4300079472LL - 416866032 - 1152 * (2560 + 1)},
      {"gemma-3-12b", 12187325040LL - 416866032 - 1152 * (3840 + 1)},
      {"gemma-3-27b", 27432406640LL - 416866032 - 1152 * (5376 + 1)},
  };
  for (const auto& [name, total] : published) {
    INFO(name);
    CHECK(job::count_parameters(preset_job(name).model).total == total);
  }
  const auto gpt3 = static_cast<double>(job::count_parameters(preset_job("gpt3-175b").model).total);
  CHECK(std::abs(gpt3 / 174.6e9 - 1) < 0.005);
  // As their papers and pages round them; GLM-4.5 with and without the layers that predict further tokens.
  const std::map<std::string, double> rounded = {
      {"glm-4.5-air", 106.0}, {"glm-4.5", 355.0},         {"qwen2-57b-a14b", 57.4}, {"minimax-m2", 230.0},
      {"deepseek-v3", 671.0}, {"deepseek-v2-lite", 15.7}, {"gpt-oss-20b", 20.91},   {"gpt-oss-120b", 116.83}};
  for (const auto& [name, billions] : rounded) {
    INFO(name);
    CHECK(std::abs(static_cast<double>(job::count_parameters(preset_job(name).model).total) / billions / 1e9 -
                   1) < 0.01);
  }
  // Megatron's table of 2021, in billions.
  const std::map<std::string, double> megatron = {
      {"megatron-145b", 145.6}, {"megatron-310b", 310.1}, {"megatron-530b", 529.6}, {"megatron-1t", 1008.0}};
  for (const auto& [name, billions] : megatron) {
    INFO(name);
    CHECK(std::abs(static_cast<double>(job::count_parameters(preset_job(name).model).total) / 1e9 -
                   billions) < 0.05);
  }
  CHECK(spec::model_preset_names().size() == published.size() + 1 + rounded.size() + megatron.size());
}

TEST_CASE("a tied head counts as a matrix multiplication and the input embedding does not", "[spec]") {
  // GPT-2 small: 12 layers of 12 x 768^2 weights, and the 50257 x 768 head.
  const job::ParameterCount gpt2 = job::count_parameters(preset_job("gpt2-124m").model);
  CHECK(gpt2.matmul == 12LL * 12 * 768 * 768 + 50257LL * 768);
  // Llama 3 8B is not tied: all but one 128256 x 4096 table and 65 norms of 4096.
  const job::ParameterCount llama = job::count_parameters(preset_job("llama-3-8b").model);
  CHECK(llama.total - llama.matmul == 128256LL * 4096 + 65LL * 4096);
}

TEST_CASE("FLOPs per token are six per matmul parameter plus those of causal attention", "[spec]") {
  job::ModelOptions model = preset_job("gpt2-124m").model;
  // 6 x 123,532,032 + 6 x 12 x 768 x 1024.
  CHECK(job::flops_per_token(model) == Approx(6.0 * 123532032 + 56623104).epsilon(1e-12));
}

TEST_CASE("a sliding layer's FLOPs count the pairs inside its window", "[spec]") {
  job::ModelOptions model = preset_job("mistral-7b").model;
  const double matmul = 6.0 * static_cast<double>(job::count_parameters(model).matmul);
  // Query i of 8192 sees min(i, 4096) keys (area under the diagonal). Two products of 2 FLOPs per feature,
  // once forward and twice backward.
  const double pairs = 8192.0 * 4096 - 4096.0 * 4096 / 2;
  CHECK(job::flops_per_token(model) == Approx(matmul + 32 * 12 * 4096 * pairs / 8192).epsilon(1e-12));
  model.attention.pattern = {"sliding", "full"};
  const double all_pairs = 8192.0 * 8192 / 2;
  CHECK(job::flops_per_token(model) ==
        Approx(matmul + 16 * 12 * 4096 * (pairs + all_pairs) / 8192).epsilon(1e-12));
  model.seq_len = 4096;  // the window holds the whole sequence
  CHECK(job::flops_per_token(model) == Approx(matmul + 6.0 * 32 * 4096 * 4096).epsilon(1e-12));
}

TEST_CASE("a job's key of a map overrides its preset's, and the map's other keys stay", "[spec]") {
  const std::string rest = "}\nsteps: 1\nbatch: {global: 1, micro: 1}\ndata: {format: synthetic}\n";
  const job::JobSpec job =
      spec::parse_job("model: {preset: llama-3.1-8b, rope_scaling: {factor: 4}" + rest, "job.yaml");
  CHECK(job.model.rope_scaling.kind == job::RopeScalingKind::llama3);
  CHECK(job.model.rope_scaling.factor == 4);
  CHECK(job.model.rope_scaling.original_max_position == 8192);
  const job::JobSpec plain =
      spec::parse_job("model: {preset: llama-3.1-8b, rope_scaling: {kind: none}" + rest, "job.yaml");
  CHECK(plain.model.rope_scaling == job::RopeScaling{});
  CHECK(spec::parse_job(spec::to_yaml(plain), "resolved.yaml") == plain);
}

TEST_CASE("qk_norm adds one weight per feature of a query head and of a key head", "[spec]") {
  job::ModelOptions model = preset_job("qwen2.5-0.5b").model;
  model.qk_norm = true;
  CHECK(job::count_parameters(model).total == 494032768 + 24 * 2 * 64);
}

TEST_CASE("a job's own keys override its preset's", "[spec]") {
  const job::JobSpec job = spec::parse_job(
      "model: {preset: llama-3-8b, layers: 2, hidden: 64, heads: 4, kv_heads: 1}\nsteps: 1\n"
      "batch: {global: 1, micro: 1}\ndata: {format: synthetic}\n",
      "job.yaml");
  CHECK(job.model.preset == "llama-3-8b");
  CHECK(job.model.layers == 2);
  CHECK(job.model.head_dim == 16);
  CHECK(job.model.ffn == 14336);
  CHECK(job.model.rope_theta == 500000.0);
}

TEST_CASE("learned positions over a preset with rotary ones drop its rope keys", "[spec]") {
  const job::JobSpec job = spec::parse_job(
      "model: {preset: llama-3-8b, positions: learned}\nsteps: 1\nbatch: {global: 1, micro: 1}\ndata: "
      "{format: synthetic}\n",
      "job.yaml");
  CHECK(job.model.rope_theta == job::ModelOptions{}.rope_theta);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
}

TEST_CASE("an unknown preset is reported with the nearest one", "[spec]") {
  const std::string rest = "steps: 1\nbatch: {global: 1, micro: 1}\ndata: {format: synthetic}\n";
  CHECK(problems("model: {preset: llama3-8b}\n" + rest) ==
        Lines{"job.yaml:1:17: model.preset: unknown preset 'llama3-8b' (nearest valid: llama-3-8b)"});
  CHECK(problems("model: {preset: ./no/such.yaml}\n" + rest) ==
        Lines{"job.yaml:1:17: model.preset: cannot open './no/such.yaml': No such file or directory"});
}

TEST_CASE("a preset may be a file, and its problems are reported in that file", "[spec]") {
  const std::string path = std::string(TRAINERD_SOURCE_DIR) + "/tests/core/data/preset.yaml";
  const std::string rest = "}\nsteps: 1\nbatch: {global: 1, micro: 1}\ndata: {format: synthetic}\n";
  const job::JobSpec job =
      spec::parse_job("model: {preset: " + path + ", layers: 3, heads: 4" + rest, "job.yaml");
  CHECK(job.model.layers == 3);
  CHECK(job.model.vocab == 300);
  CHECK(job.model.preset.empty());
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
  CHECK(problems("model: {preset: " + path + rest) ==
        Lines{path + ":4:8: model.heads: expected an integer, got 'four'"});
}

TEST_CASE("the resolved job of every preset reads back to the same job", "[spec]") {
  for (const std::string& name : spec::model_preset_names()) {
    INFO(name);
    const job::JobSpec job = preset_job(name);
    CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
  }
}

TEST_CASE("the quickstart job is valid, has about ten million parameters and reads back", "[spec]") {
  const job::JobSpec job = spec::load_job(std::string(TRAINERD_SOURCE_DIR) + "/configs/quickstart.yaml");
  const std::int64_t parameters = job::count_parameters(job.model).total;
  CHECK(parameters > 9'500'000);
  CHECK(parameters < 11'500'000);
  CHECK(job.precision.name == "bf16");
  CHECK(job.microbatches() == 1);
  CHECK(job.parallel.dp == 2);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
}

}  // namespace
}  // namespace trainerd::core
