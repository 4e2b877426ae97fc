// The boxes of weights that ranks read are equal to these parts of the whole tensor. The model records of
// checkpoints survive a round trip.

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/hf/companions.h"
#include "core/hf/config.h"
#include "core/hf/convert.h"
#include "core/hf/elements.h"
#include "core/hf/weight_source.h"
#include "core/model/identity.h"
#include "io/checkpoint/tensor_file.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;

namespace {

core::job::ModelOptions tiny_gpt2() {
  core::job::ModelOptions m;
  m.layers = 2, m.hidden = 8, m.heads = m.kv_heads = 2, m.head_dim = 4, m.ffn = 12, m.vocab = 11,
  m.seq_len = 6;
  m.norm = core::job::Norm::layer;
  m.positions = core::job::Positions::learned;
  m.mlp = core::job::Mlp::gelu;
  m.linear_bias = m.attention_bias = m.qkv_bias = m.mlp_bias = m.tie_embeddings = true;
  return m;
}

core::job::ModelOptions tiny_qwen() {
  core::job::ModelOptions m;
  m.layers = 1, m.hidden = 8, m.heads = 4, m.kv_heads = 2, m.head_dim = 6, m.ffn = 10, m.vocab = 11,
  m.seq_len = 6;
  m.qk_norm = true;
  m.norm_eps = 1e-6;
  m.rope_theta = 12345.678;
  return m;
}

/// Writes a Hugging Face directory whose tensors hold consecutive numbers.
void write_directory(const std::string& path, const std::string& family,
                     const core::job::ModelOptions& model) {
  std::filesystem::create_directories(path);
  std::ofstream(path + "/config.json") << core::hf::write_config(family, model, "", core::hf::Element::f32);
  std::vector<io::StoredTensor> stored;
  for (const auto& tensor : core::hf::map_tensors(core::hf::tensor_rules(family), model))
    for (const auto& part : tensor.parts)
      stored.push_back({.name = part.name, .dtype = kernels::DType::f32, .shape = tensor.their_shape(part)});
  const io::SafetensorsLayout layout = io::lay_out_safetensors(stored, {{"format", "pt"}}, io::Gaps::none);
  io::TensorFileWriter writer(path + "/model.safetensors", layout);
  std::vector<float> values(static_cast<std::size_t>(layout.tensors.back().end) / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  writer.append(std::as_bytes(std::span(values)));
  writer.finish();
}

std::vector<float> read_box(const core::hf::WeightSource& source, const io::TensorSlice& box) {
  std::int64_t count = 1;
  for (const std::int64_t size : box.shape) count *= size;
  std::vector<float> values(static_cast<std::size_t>(count));
  source.read(box, std::as_writable_bytes(std::span(values)));
  return values;
}

io::TensorSlice whole_box(const core::hf::SourceTensor& tensor) {
  return {.name = tensor.name,
          .dtype = kernels::DType::f32,
          .logical_shape = tensor.shape,
          .begin = std::vector<std::int64_t>(tensor.shape.size(), 0),
          .shape = tensor.shape};
}

void check_random_boxes(const core::hf::WeightSource& source) {
  std::mt19937 random(1);
  for (const core::hf::SourceTensor& tensor : source.tensors()) {
    CAPTURE(tensor.name);
    const std::vector<float> whole = read_box(source, whole_box(tensor));
    const std::int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    for (int trial = 0; trial < 20; ++trial) {
      io::TensorSlice box = whole_box(tensor);
      for (std::size_t d = 0; d < box.shape.size(); ++d) {
        box.begin[d] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tensor.shape[d]));
        box.shape[d] = 1 + static_cast<std::int64_t>(
                               random() % static_cast<std::uint64_t>(tensor.shape[d] - box.begin[d]));
      }
      const std::vector<float> part = read_box(source, box);
      const std::int64_t width = box.shape.size() == 2 ? box.shape[1] : 1,
                         left = box.shape.size() == 2 ? box.begin[1] : 0;
      bool same = true;
      for (std::size_t i = 0; i < part.size(); ++i) {
        const std::int64_t row = box.begin[0] + static_cast<std::int64_t>(i) / width,
                           column = left + static_cast<std::int64_t>(i) % width;
        same = same && part[i] == whole[static_cast<std::size_t>(row * columns + column)];
      }
      CHECK(same);
    }
  }
}

}  // namespace

TEST_CASE("boxes of a Hugging Face directory and of its checkpoint are parts of the whole", "[hf]") {
  const test::TempDir dir;
  const bool gpt2 = GENERATE(true, false);
  const std::string from = dir.path() + "/hf", to = dir.path() + "/ckpt";
  write_directory(from, gpt2 ? "gpt2" : "qwen3", gpt2 ? tiny_gpt2() : tiny_qwen());
  const auto directory = core::hf::open_weights(from);
  check_random_boxes(*directory);
  core::hf::import_weights({.from = from, .out = to, .most_shard_bytes = 600});
  const auto checkpoint = core::hf::open_weights(to);
  check_random_boxes(*checkpoint);
  for (const core::hf::SourceTensor& tensor : directory->tensors())
    CHECK(read_box(*directory, whole_box(tensor)) == read_box(*checkpoint, whole_box(tensor)));
}

TEST_CASE("a merged projection concatenates the rows of its parts, and GPT-2's weights are transposed",
          "[hf]") {
  const test::TempDir dir;
  write_directory(dir.path() + "/q", "qwen3", tiny_qwen());
  const auto qwen = core::hf::open_weights(dir.path() + "/q");
  const io::TensorSlice embed{
      .name = "embed.weight", .logical_shape = {11, 8}, .begin = {0, 0}, .shape = {1, 2}};
  CHECK(read_box(*qwen, embed) == std::vector<float>{1, 2});
  // In the file: embedding 88, norm 8, then queries [24, 8], keys [12, 8].
  const io::TensorSlice seam{
      .name = "layers.0.qkv.weight", .logical_shape = {48, 8}, .begin = {23, 7}, .shape = {2, 1}};
  CHECK(read_box(*qwen, seam) == std::vector<float>{96 + 192, 96 + 192 + 8});
  write_directory(dir.path() + "/g", "gpt2", tiny_gpt2());
  const auto gpt2 = core::hf::open_weights(dir.path() + "/g");
  // Embedding 88, positions 48, norm 16, then [8, 24] of the merged projection.
  const io::TensorSlice turned{
      .name = "layers.0.qkv.weight", .logical_shape = {24, 8}, .begin = {0, 0}, .shape = {2, 2}};
  CHECK(read_box(*gpt2, turned) == std::vector<float>{153, 153 + 24, 154, 154 + 24});
}

TEST_CASE("half precision becomes fp32 exactly, and values that are not finite are found", "[hf]") {
  const std::vector<std::uint16_t> halves{0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000, 0x7c00};
  std::vector<float> wide(halves.size());
  const auto bad = core::hf::convert(core::hf::Element::f16, std::as_bytes(std::span(halves)),
                                     kernels::DType::f32, std::as_writable_bytes(std::span(wide)));
  CHECK(wide[0] == 1.0f);
  CHECK(wide[1] == -2.0f);
  CHECK(wide[2] == 5.9604644775390625e-8f);
  CHECK(wide[3] == 65504.0f);
  CHECK((wide[4] == 0.0f && std::signbit(wide[4])));
  CHECK(bad == 5);
}

TEST_CASE("every finite half survives a round trip, and values between two round to nearest even", "[hf]") {
  std::vector<std::uint16_t> halves(0x7c00);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  core::hf::convert(core::hf::Element::f16, std::as_bytes(std::span(halves)), kernels::DType::f32,
                    std::as_writable_bytes(std::span(wide)));
  const auto narrowed = [](const std::vector<float>& values) {
    std::vector<std::uint16_t> out(values.size());
    CHECK(core::hf::convert_to_half(values, std::as_writable_bytes(std::span(out))) == std::nullopt);
    return out;
  };
  CHECK(narrowed(wide) == halves);
  std::vector<float> between, above, negative;
  std::vector<std::uint16_t> even, next, signed_halves;
  for (std::size_t i = 0; i + 1 < halves.size(); ++i) {
    between.push_back((wide[i] + wide[i + 1]) / 2);
    even.push_back(static_cast<std::uint16_t>(i % 2 == 0 ? i : i + 1));
    above.push_back(std::nextafter(between.back(), INFINITY));
    next.push_back(static_cast<std::uint16_t>(i + 1));
    negative.push_back(-wide[i]);
    signed_halves.push_back(static_cast<std::uint16_t>(0x8000 | i));
  }
  CHECK(narrowed(between) == even);
  CHECK(narrowed(above) == next);
  CHECK(narrowed(negative) == signed_halves);
  std::vector<std::uint16_t> out(3);
  for (const float large : {65520.0f, -1e30f, INFINITY, NAN})
    CHECK(core::hf::convert_to_half(std::vector<float>{1, 65519, large},
                                    std::as_writable_bytes(std::span(out))) == 2);
  CHECK(out[1] == 0x7bff);
}

namespace {

core::job::ModelOptions tiny_windows() {
  core::job::ModelOptions m = tiny_qwen();
  m.layers = 3;
  m.rope_scaling = {.kind = core::job::RopeScalingKind::yarn,
                    .factor = 2.5,
                    .original_max_position = 4,
                    .beta_slow = 0.5,
                    .attention_factor = 1.25,
                    .truncate = false};
  m.attention = {.window = 3, .pattern = {"full", "full", "sliding"}};
  return m;
}

}  // namespace

TEST_CASE("checkpoints record newer options only where they are not the default", "[hf]") {
  const auto plain = core::model::model_identity(tiny_qwen());
  for (const auto& [key, value] : plain) {
    CHECK(key.find("rope_scaling") == std::string::npos);
    CHECK(key.find("attention") == std::string::npos);
  }
  const auto windows = core::model::model_identity(tiny_windows());
  CHECK(windows.at("model.attention.pattern") == "full full sliding");
  CHECK(windows.at("model.rope_scaling.truncate") == "false");
  CHECK(windows.count("model.rope_scaling.beta_fast") == 0);
}

TEST_CASE("scaled angles and windows of every kind survive a round trip through config.json", "[hf]") {
  using enum core::job::RopeScalingKind;
  core::job::ModelOptions m = tiny_windows();
  std::vector<core::job::ModelOptions> models{m};
  m.rope_scaling = {.kind = linear, .factor = 4};
  m.attention.pattern = {};
  models.push_back(m);
  m.rope_scaling = {.kind = llama3, .factor = 8, .original_max_position = 3, .high_freq_factor = 4.5};
  m.attention = {};
  models.push_back(m);
  for (const core::job::ModelOptions& model : models) {
    const std::string text = core::hf::write_config("qwen3", model, "", core::hf::Element::f32);
    CAPTURE(text);
    CHECK(core::hf::read_config(text, "config.json").model == model);
    CHECK(core::hf::family_of(model, "") == "qwen3");
  }
}

namespace {

core::job::ModelOptions tiny_gemma() {
  core::job::ModelOptions m = tiny_qwen();
  m.layers = 7;
  m.attention = {.query_pre_attn_scalar = 5,
                 .window = 3,
                 .pattern = {"sliding", "sliding", "full"},
                 .sliding_theta = 100};
  m.rope_scaling = {.kind = core::job::RopeScalingKind::linear, .factor = 8};
  m.norm_placement = core::job::NormPlacement::sandwich;
  m.norm_weight = core::job::NormWeight::less_one;
  m.mlp = core::job::Mlp::geglu;
  m.scale_embeddings = m.tie_embeddings = true;
  return m;
}

core::job::ModelOptions tiny_gemma2() {
  core::job::ModelOptions m = tiny_gemma();
  m.layers = 4;
  m.attention = {.query_pre_attn_scalar = 5, .window = 3, .pattern = {"sliding", "full"}, .softcap = 50};
  m.logit_softcap = 30;
  m.rope_scaling = {};
  m.qk_norm = false;
  return m;
}

core::job::ModelOptions tiny_stablelm() {
  core::job::ModelOptions m = tiny_qwen();
  m.qk_norm = false;
  m.qkv_bias = true;
  m.norm = core::job::Norm::layer;
  m.hidden = 16;
  m.head_dim = m.hidden / m.heads;
  m.rotary_fraction = 0.5;
  return m;
}

core::job::ModelOptions tiny_olmo() {
  core::job::ModelOptions m = tiny_qwen();
  m.norm_placement = core::job::NormPlacement::post;
  m.qk_norm_span = core::job::QkNormSpan::all;
  return m;
}

core::job::ModelOptions tiny_granite() {
  core::job::ModelOptions m = tiny_qwen();
  m.qk_norm = false;
  m.attention = {.scale = 0.0078125};
  m.embedding_scale = 12, m.residual_scale = 0.22, m.logit_divisor = 8;
  m.mlp_bias = true;
  return m;
}

core::job::ModelOptions tiny_mixtral() {
  core::job::ModelOptions m = tiny_qwen();
  m.qk_norm = false;
  m.experts = {.count = 4, .per_token = 2};
  return m;
}

core::job::ModelOptions tiny_qwen_moe() {
  core::job::ModelOptions m = tiny_qwen();
  m.experts = {.count = 4, .per_token = 3, .normalise = false};
  return m;
}

core::job::ModelOptions tiny_qwen2_moe() {
  core::job::ModelOptions m = tiny_qwen_moe();
  m.qk_norm = false, m.qkv_bias = true;
  m.layers = 5;
  m.experts.ffn = 6, m.experts.shared_ffn = 14, m.experts.shared_gate = true, m.experts.every = 2;
  m.experts.dense_layers = 2;
  return m;
}

core::job::ModelOptions tiny_glm_moe() {
  core::job::ModelOptions m = tiny_qwen_moe();
  m.qkv_bias = true, m.rotary_fraction = 2.0 / 3;
  m.layers = 5;
  m.experts = {.count = 4,
               .per_token = 2,
               .ffn = 6,
               .shared_ffn = 12,
               .dense_layers = 3,
               .score = core::job::RouterScore::sigmoid,
               .bias = true,
               .scale = 2.5};
  return m;
}

core::job::ModelOptions tiny_olmoe() {
  core::job::ModelOptions m = tiny_qwen_moe();
  m.qk_norm_span = core::job::QkNormSpan::all;
  return m;
}

core::job::ModelOptions tiny_phi() {
  core::job::ModelOptions m = tiny_qwen();
  m.qk_norm = false;
  m.hidden = 24;
  m.rotary_fraction = 2.0 / 3;
  m.attention = {.window = 3};
  return m;
}

}  // namespace

TEST_CASE(
    "models of Gemma 2 and 3, StableLM, OLMo 2, Granite, Phi-3 and of experts survive a round trip through "
    "config.json",
    "[hf]") {
  core::job::ModelOptions uncapped = tiny_gemma2(), capped = tiny_gemma();
  uncapped.attention.softcap = uncapped.logit_softcap = 0;
  capped.attention.softcap = 7, capped.logit_softcap = 8;
  for (const auto& [family, model] : {std::pair{std::string("gemma3_text"), tiny_gemma()},
                                      {"gemma3_text", capped},
                                      {"gemma2", tiny_gemma2()},
                                      {"gemma2", uncapped},
                                      {"stablelm", tiny_stablelm()},
                                      {"granite", tiny_granite()},
                                      {"phi3", tiny_phi()},
                                      {"mixtral", tiny_mixtral()},
                                      {"qwen3_moe", tiny_qwen_moe()},
                                      {"qwen2_moe", tiny_qwen2_moe()},
                                      {"glm4_moe", tiny_glm_moe()},
                                      {"olmoe", tiny_olmoe()},
                                      {"olmo2", tiny_olmo()}}) {
    const std::string text = core::hf::write_config(family, model, "", core::hf::Element::f32);
    CAPTURE(text);
    CHECK(core::hf::read_config(text, "config.json").model == model);
    CHECK(core::hf::family_of(model, "") == family);
  }
  // Defaults of keys that Gemma 2's own config.json leaves out.
  const core::job::ModelOptions told =
      core::hf::read_config(R"({"model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 8,
                                "vocab_size": 9, "hidden_size": 16, "intermediate_size": 8,
                                "num_hidden_layers": 3, "num_attention_heads": 2,
                                "max_position_embeddings": 8192})",
                            "config.json")
          .model;
  CHECK(told.attention ==
        core::job::AttentionOptions{
            .query_pre_attn_scalar = 256, .window = 4096, .pattern = {"sliding", "full"}, .softcap = 50});
  CHECK(told.logit_softcap == 30);
  CHECK(told.tie_embeddings);
  // Both spellings of partial rotary embeddings, and values that no family has.
  const auto stablelm = [](const std::string& rope) {
    return core::hf::read_config(R"({"model_type": "stablelm", "num_key_value_heads": 2, "vocab_size": 9,
                                     "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1,
                                     "num_attention_heads": 2, "max_position_embeddings": 8)" +
                                     rope + "}",
                                 "config.json")
        .model.rotary_fraction;
  };
  CHECK(stablelm("") == 0.25);
  CHECK(stablelm(R"(, "partial_rotary_factor": 0.5)") == 0.5);
  CHECK(stablelm(R"(, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.75})") == 0.75);
  CHECK_THROWS_WITH(
      stablelm(R"(, "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0})"),
      Catch::Contains("partial_rotary_factor is 1.0 here and 0.5 at the top"));
  CHECK_THROWS_WITH(stablelm(R"(, "partial_rotary_factor": 0.2)"),
                    Catch::Contains("rotates 3 elements of a head of 16"));
  core::job::ModelOptions sinks = tiny_qwen();
  sinks.attention.sinks = true;
  CHECK_THROWS_WITH(core::hf::family_of(sinks, ""), Catch::Contains("model.attention.sinks: true"));
  core::job::ModelOptions gpt_oss = sinks;
  gpt_oss.qk_norm = false;
  gpt_oss.linear_bias = gpt_oss.attention_bias = gpt_oss.qkv_bias = gpt_oss.mlp_bias = true;
  gpt_oss.mlp = core::job::Mlp::swiglu_clamped;
  gpt_oss.experts = {.count = 4, .per_token = 2, .logit_bias = true};
  gpt_oss.rope_scaling = {.kind = core::job::RopeScalingKind::yarn, .factor = 4, .original_max_position = 4};
  CHECK(core::hf::family_of(gpt_oss, "") == "gpt_oss");
  gpt_oss.experts.logit_bias = false;
  CHECK_THROWS_WITH(core::hf::family_of(gpt_oss, ""), Catch::Contains("no Hugging Face family"));
  core::job::ModelOptions m = tiny_gemma();
  m.norm_weight = core::job::NormWeight::factor;
  CHECK_THROWS_WITH(core::hf::family_of(m, ""), Catch::Contains("norm_placement: sandwich"));
}

TEST_CASE("a model reads back from its record in a checkpoint", "[hf]") {
  for (const core::job::ModelOptions& model :
       {tiny_gpt2(), tiny_qwen(), tiny_windows(), tiny_gemma(), tiny_gemma2(), tiny_stablelm(), tiny_olmo(),
        tiny_granite(), tiny_qwen_moe()}) {
    auto identity = core::model::model_identity(model);
    CHECK(core::model::model_of(identity, "x") == model);
    identity["seed"] = "3";
    CHECK(core::model::model_of(identity, "x") == model);
    identity["model.mlp"] = "relu";
    CHECK_THROWS_AS(core::model::model_of(identity, "x"), base::CheckpointError);
    identity.erase("model.mlp");
    CHECK_THROWS_AS(core::model::model_of(identity, "x"), base::CheckpointError);
  }
}

TEST_CASE("the record of the weights' origin reads back", "[hf]") {
  const core::hf::Origin origin{"{\"a\": \"\\u00e9\"}", "{}", "abc", "/somewhere \"else\"", "123"};
  CHECK(core::hf::parse_origin(core::hf::to_text(origin), "x") == origin);
  CHECK(core::hf::to_text({}).empty());
  CHECK(core::hf::parse_origin("", "x") == core::hf::Origin{});
}

TEST_CASE("a file says which layers have experts, by a step and a list", "[hf]") {
  const auto read = [](const std::string& keys, const std::string& dense = R"("intermediate_size": 12, )") {
    return core::hf::read_config(R"({"model_type": "qwen2_moe", "vocab_size": 9, "hidden_size": 8,
                                     "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 2,
                                     "max_position_embeddings": 8, "num_experts": 4, "num_experts_per_tok": 2,
                                     "moe_intermediate_size": 4, "shared_expert_intermediate_size": 10, )" +
                                     dense + keys + "}",
                                 "config.json")
        .model;
  };
  const auto dense = [&](const std::string& keys) {
    const core::job::ModelOptions m = read(keys);
    std::string layers;
    for (std::int64_t layer = 0; layer < 6; ++layer)
      layers += core::job::layer_options(m, layer).experts ? "e" : "d";
    return layers;
  };
  CHECK(dense(R"("mlp_only_layers": [])") == "eeeeee");
  CHECK(dense(R"("mlp_only_layers": null)") == "eeeeee");
  CHECK(dense(R"("mlp_only_layers": [1, 0])") == "ddeeee");
  CHECK(dense(R"("decoder_sparse_step": 2)") == "dedede");
  CHECK(dense(R"("decoder_sparse_step": 2, "mlp_only_layers": [1])") == "dddede");
  CHECK(dense(R"("decoder_sparse_step": 2, "mlp_only_layers": [4])") == "dedede");
  CHECK(dense(R"("decoder_sparse_step": 3, "mlp_only_layers": [0, 1, 2, 4])") == "ddddde");
  CHECK(read(R"("mlp_only_layers": [0])").experts.ffn == 4);
  CHECK(read(R"("mlp_only_layers": [0])").ffn == 12);
  CHECK(read(R"("decoder_sparse_step": 1)").ffn == 4);
  CHECK(read(R"("decoder_sparse_step": 1)", "").ffn == 4);
  CHECK_THROWS_WITH(read(R"("mlp_only_layers": [0])", ""), Catch::Contains("intermediate_size: is missing"));
  CHECK_THROWS_WITH(read(R"("mlp_only_layers": [3])"),
                    Catch::Contains("mlp_only_layers: [3] is not available"));
  CHECK_THROWS_WITH(read(R"("mlp_only_layers": "0")"), Catch::Contains("expected a list of layers"));
  CHECK_THROWS_WITH(read(R"("decoder_sparse_step": 0)"), Catch::Contains("expected an integer from 1"));
}
