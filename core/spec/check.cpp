#include "core/spec/check.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "core/model/parameters.h"
#include "core/spec/check_batch.h"
#include "core/spec/check_evaluation.h"
#include "core/spec/check_exclusions.h"
#include "core/spec/check_layers.h"
#include "core/spec/check_masks.h"
#include "core/spec/check_metrics.h"
#include "core/spec/check_optimizer.h"
#include "core/spec/check_precision.h"
#include "core/spec/check_preferences.h"
#include "core/spec/check_sizes.h"
#include "core/spec/cluster.h"
#include "core/spec/faults_fields.h"
#include "core/spec/fields.h"
#include "core/spec/lora.h"
#include "core/spec/supervise.h"
#include "core/spec/write.h"
#include "io/s3/client.h"
#include "io/storage/storage.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/schedule_shape.h"
#include "parallel/layout/split.h"

namespace trainerd::core::spec {
namespace {

using std::to_string;

std::string nearest_multiple(std::int64_t value, std::int64_t of) {
  return to_string(std::max<std::int64_t>(1, (value + of / 2) / of) * of);
}

class Checker {
 public:
  Checker(job::JobSpec& job, const Places& places, std::optional<int> preset, Problems& problems)
      : job_(job), places_(places), preset_(preset), problems_(problems) {}

  void run() {
    required();
    derive();
    exclusions();
    names();
    model();
    batch();
    precision();
    optimizer();
    if (good({"lora", "lora.rank", "lora.targets", "model.from", "optimizer.name"}))
      for (const KeyProblem& found : complete_lora(job_)) problem(found.path, found.what);
    data();
    for (const KeyProblem& wrong : metrics_problems(job_, problems_)) problem(wrong.path, wrong.what);
    durable();
    trace();
    for (const auto& problems : {supervise_problems(job_), fault_problems(job_, problems_)})
      for (const KeyProblem& wrong : problems)
        if (!problems_.bad(wrong.path)) problem(wrong.path, wrong.what);
    availability();
    idle_keys();
    machines();
    settle_model(job_.model);
  }

 private:
  bool given(const std::string& path) const { return places_.contains(path); }
  // True if the job itself or an override gives the key, not its preset.
  bool given_by_job(const std::string& path) const {
    const auto place = places_.find(path);
    return place != places_.end() && (!preset_ || place->second.source != *preset_);
  }
  bool good(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [&](const char* path) { return problems_.bad(path); });
  }
  // The key's own place, or that of the nearest enclosing section.
  Place place_of(std::string path) const {
    for (; !path.empty(); path = section_of(path))
      if (const auto place = places_.find(path); place != places_.end()) return place->second;
    return {};
  }
  void problem(const std::string& path, const std::string& what) {
    problems_.add(place_of(path), path, what);
  }

  void required() {
    for (const Field& field : fields_of(job_)) {
      const bool train = field.path == "data.train" && job_.data.format != io::DataFormat::synthetic &&
                         good({"data.format", "data.sources"}) && !given("data.sources");
      const bool batches = field.path == "evaluate.batches" && job_.evaluate.every > 0;
      if ((!field.required && !train && !batches) || given(field.path) || problems_.bad(field.path)) continue;
      // A section that is wrong as a whole has its own report.
      if (!section_of(field.path).empty() && problems_.bad(section_of(field.path))) continue;
      if (field.path.starts_with("model.") && !good({"model.preset", "model.from"})) continue;
      problem(field.path, "is required: " + field.meaning);
    }
  }

  void derive() {
    job::ModelOptions& m = job_.model;
    if (!given("model.kv_heads")) m.kv_heads = m.heads;
    job::settle_mla(m);
    if (!given("model.head_dim") && !m.mla.on() && good({"model.hidden", "model.heads"}) && m.heads > 0) {
      if (m.hidden % m.heads != 0)
        problem("model.hidden", to_string(m.hidden) + " is not divisible by heads " + to_string(m.heads) +
                                    ", and head_dim is not given (nearest valid: " +
                                    nearest_multiple(m.hidden, m.heads) + ")");
      m.head_dim = m.hidden / m.heads;
    }
    job::PrecisionRecipe& r = job_.precision;
    if (r.name == "custom") {
      if (!given("precision.params")) r.params = r.compute;
      if (!given("precision.loss_scale")) r.loss_scale.dynamic = r.compute == kernels::DType::f16;
      name_recipe(r);
    }
    derive_optimizer(job_.optimizer, [this](const char* path) { return given(path); });
    if (!given("output")) job_.output = "runs/" + job_.name;
    derive_documents(job_, [this](const char* path) { return given(path); });
  }

  // A map with the values of a recipe is that recipe.
  static void name_recipe(job::PrecisionRecipe& recipe) {
    for (const std::string& name : recipe_names()) {
      job::PrecisionRecipe named;
      recipe_by_name(name, named);
      named.name = recipe.name;
      if (named == recipe) {
        recipe.name = name;
        return;
      }
    }
  }

  void exclusions() {
    const KeyFacts facts{.given = [this](const std::string& path) { return given(path); },
                         .given_by_job = [this](const std::string& path) { return given_by_job(path); },
                         .bad = [this](const std::string& path) { return problems_.bad(path); }};
    for (const KeyProblem& found : exclusion_problems(spec::fields_of(job_), facts))
      problem(found.path, found.what);
  }

  void names() {
    const std::string& name = job_.name;
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
             c == '_' || c == '-';
    };
    if (good({"name"}) && (name.empty() || name.size() > 128 || name[0] == '.' || name[0] == '-' ||
                           !std::all_of(name.begin(), name.end(), allowed)))
      problem("name",
              "must be 1 to 128 letters, digits, '.', '_' or '-', beginning with none of '.' and '-', got " +
                  show(name));
    if (good({"output"}) && job_.output.empty()) problem("output", "is empty: give a directory");
  }

  void model() {
    const job::ModelOptions& m = job_.model;
    if (good({"model.heads", "model.kv_heads"}) && m.kv_heads > 0 && m.heads % m.kv_heads != 0)
      problem("model.kv_heads", to_string(m.kv_heads) + " does not divide heads " + to_string(m.heads) +
                                    " (nearest valid: " + nearest_divisor(m.kv_heads, m.heads) + ")");
    if (good({"model.head_dim", "model.positions", "model.hidden"}) && m.positions == job::Positions::rope &&
        !m.mla.on() && m.head_dim % 2 != 0)
      problem(given("model.head_dim") ? "model.head_dim" : "model.hidden",
              "head_dim " + to_string(m.head_dim) +
                  " is odd: positions: rope turns pairs of features (nearest valid: " +
                  to_string(m.head_dim + 1) + ")");
    if (good({"model.head_dim", "device"}) && job_.device == job::DeviceChoice::cuda)
      for (const KeyProblem& p : cuda_head_problems(m))
        problem(p.path == "model.head_dim" && !given(p.path) ? "model.heads" : p.path, p.what);
    for (const KeyProblem& p : layer_problems(m))
      if (!problems_.bad(p.path)) problem(p.path, p.what);
  }

  static std::string nearest_divisor(std::int64_t value, std::int64_t of) {
    std::int64_t best = 1;
    for (std::int64_t d = 1; d <= of; ++d)
      if (of % d == 0 && std::abs(d - value) <= std::abs(best - value)) best = d;
    return to_string(best);
  }

  void batch() {
    if (!good({"batch.global", "batch.micro", "batch.ramp", "parallel.dp"})) return;
    for (const KeyProblem& wrong : batch_problems(job_)) problem(wrong.path, wrong.what);
  }

  void precision() {
    if (!good({"precision", "precision.rounding", "precision.master", "precision.moments", "precision.grads",
               "precision.initial_loss_scale", "precision.min_loss_scale"}))
      return;
    for (const KeyProblem& wrong : precision_problems(job_.precision)) problem(wrong.path, wrong.what);
  }

  void optimizer() {
    for (const KeyProblem& wrong : optimizer_problems(job_, problems_)) problem(wrong.path, wrong.what);
  }

  void data() {
    const io::DataOptions& d = job_.data;
    const bool files = d.format != io::DataFormat::synthetic;
    if (!good({"data.format"})) return;
    if (files && given("data.train") && good({"data.train"}) && d.train.empty())
      problem("data.train", "is empty: give at least one file, directory or pattern");
    if (files && given("data.sources") && good({"data.sources"}) && d.sources.empty())
      problem("data.sources", "is empty: give at least one source, or data.train");
    for (const KeyProblem& wrong : data_mask_problems(job_, [this](const char* path) { return given(path); }))
      problem(wrong.path, wrong.what);
    for (const KeyProblem& wrong : preference_problems(job_)) problem(wrong.path, wrong.what);
    for (const KeyProblem& wrong : data_scheme_problems(job_)) problem(wrong.path, wrong.what);
    for (const KeyProblem& wrong : evaluation_problems(job_, problems_)) problem(wrong.path, wrong.what);
    if (d.format == io::DataFormat::text && d.tokenizer == "bytes" &&
        good({"data.tokenizer", "model.vocab"}) && job_.model.vocab > 0 && job_.model.vocab < 256)
      problem("model.vocab",
              to_string(job_.model.vocab) + " is too small for tokenizer: bytes (nearest valid: 256)");
  }

  void durable() {
    const std::string& to = job_.checkpoint.durable.to;
    if (io::is_remote(to) && !io::is_s3(to))
      problem("checkpoint.durable.to", "expected a directory or s3://bucket/prefix, got '" + to + "'");
    if (to.empty() || io::is_remote(to)) return;
    if (io::is_same_directory(to, job_.output) || io::is_same_directory(to, job_.output + "/checkpoints"))
      problem("checkpoint.durable.to", "is the run's own directory: name another place");
  }

  void trace() {
    if (!good({"trace.steps", "steps"})) return;
    for (const std::int64_t step : job_.trace.steps)
      if (step > job_.steps)
        problem("trace.steps", "step " + to_string(step) +
                                   " is after the last one (nearest valid: " + to_string(job_.steps) + ")");
  }

  void availability() {
    for (const Field& field : fields_of(job_)) {
      if (field.honoured || problems_.bad(field.path)) continue;
      problem(field.path, shown_value(field) + " is not available yet: " + field.remedy);
    }
  }

  static std::string shown_value(const Field& field) {
    if (const auto* text = std::get_if<std::string*>(&field.storage)) return show(**text);
    if (const auto* choice = std::get_if<Choice>(&field.storage)) return choice->word();
    if (const auto* size = std::get_if<std::int64_t*>(&field.storage)) return to_string(**size);
    return "true";
  }

  // Reports given keys that have no effect, unless their value is the default.
  void idle_keys() {
    job::JobSpec empty;
    const std::vector<Field> defaults = fields_of(empty);
    const std::vector<Field> fields = fields_of(job_);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const Field& field = fields[i];
      if (field.idle.empty() || !given_by_job(field.path) || problems_.bad(field.path)) continue;
      if (field.path.starts_with("precision.") || same_value(field.storage, defaults[i].storage)) continue;
      const bool of_base = problems_.of_base(place_of(field.path));
      const std::string key =
          field.path.substr(section_of(field.path).empty() ? 0 : section_of(field.path).size() + 1);
      problem(field.path, "has no effect: " + field.idle + "; leave it out" +
                              (of_base ? ", or take it away in the job: `" + key + ": ~`" : ""));
    }
  }

  // Checks sizes, order and machines. Runs after `availability`: unsupported values need not fit.
  void machines() {
    parallel::ParallelOptions& p = job_.parallel;
    parallel::AxisOrder order = parallel::kDefaultOrder;
    std::string what;
    if (good({"parallel.order"}) && !parallel::parse_order(p.order, order, what))
      problem("parallel.order", show(p.order) + ": " + what + " (nearest valid: " + to_string(order) + ")");
    std::optional<parallel::Topology> cluster;
    if (good({"cluster.preset"}) && job_.cluster.preset != "local")
      cluster = read_cluster(job_.cluster.preset, place_of("cluster.preset"), problems_);
    if (!good({"parallel.order", "parallel.tp", "parallel.cp", "parallel.ep", "parallel.etp", "parallel.dp",
               "parallel.pp"}))
      return;
    if (p.etp > 1 && p.etp != p.tp)
      return problem("parallel.etp",
                     "experts are cut over all tensor-parallel ranks or none (nearest valid: " +
                         to_string(p.etp > p.tp / 2 ? p.tp : 1) + ")");
    if (p.etp == p.tp) p.etp = 0;
    what = parallel::grid_problem(p);
    if (!what.empty()) return problem("parallel", what);
    layout();
    // NCCL rounds partial sums at every rank. A job for a preset may be for planning only; `run` checks it
    // again, see job_here.
    const job::PrecisionRecipe& r = job_.precision;
    if (!cluster && job::uses_nccl(job_) && p.most_gradient_ranks() > 1 && r.grads == kernels::DType::bf16 &&
        !r.exchanges_gradients())
      problem("precision.grads",
              "bf16 gradients cannot be summed in fp32 by NCCL: set precision.reduce to bf16 (ranks exchange "
              "them and sum in fp32), grads to fp32, or cluster.communication to staged");
    if (!good({"cluster.preset", "cluster.nodes"})) return;
    const parallel::ProcessGrid grid = parallel::make_grids(p).dense;
    if ((!cluster || given("cluster.nodes")) && !among_nodes(grid.ranks())) return;
    if (!cluster) {
      cluster = local_nodes(grid.ranks());
      if (!cluster) return;
    }
    const std::int64_t per_node = cluster->devices_per_node;
    if (!given("cluster.nodes")) job_.cluster.nodes = (grid.ranks() + per_node - 1) / per_node;
    cluster->nodes = job_.cluster.nodes;
    // Too few devices are refused when ranks are placed; the job itself may be valid.
    if (p.allow_tp_across_nodes || grid.ranks() > cluster->devices()) return;
    what = parallel::PlacedGrid(grid, *cluster).tp_problem();
    if (!what.empty()) problem("parallel.tp", what);
  }

  // True if each node has the same number of ranks.
  bool among_nodes(std::int64_t ranks) {
    const std::int64_t nodes = job_.cluster.nodes;
    if (ranks % nodes == 0) return true;
    std::int64_t nearest = std::min(nodes, ranks);
    while (ranks % nearest != 0) --nearest;
    problem("cluster.nodes", to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                                 " (tp x cp x pp x dp) cannot be divided evenly among " + to_string(nodes) +
                                 " nodes (nearest valid: " + to_string(nearest) + ")");
    return false;
  }

  // Several machines like this one; nothing for a single machine.
  std::optional<parallel::Topology> local_nodes(std::int64_t ranks) {
    const std::int64_t nodes = job_.cluster.nodes;
    if (nodes == 1) return std::nullopt;
    parallel::Topology local;
    local.nodes = nodes;
    local.devices_per_node = ranks / nodes;
    return local;
  }

  // Checks that layers, heads and batch fit the axes.
  void layout() {
    const parallel::ParallelOptions& p = job_.parallel;
    std::string what;
    // A missing or wrong size has its own problem already, and may be 0.
    const job::ModelOptions& m = job_.model;
    if (std::min({p.tp, m.heads, m.kv_heads, m.ffn}) >= 1 &&
        good({"model.heads", "model.kv_heads", "model.ffn", "model.experts.ffn",
              "model.experts.shared_ffn"}) &&
        !(what = model::tensor_parallel_problem(job_.model, p.tp, p.whole_experts())).empty())
      problem("parallel.tp", what);
    context(p);
    if (good({"model.experts.count"}))
      for (const KeyProblem& found : expert_parallel_problems(job_)) problem(found.path, found.what);
    for (const KeyProblem& found : turns_problems(p)) problem(found.path, found.what);
    for (const KeyProblem& found : offload_problems(job_)) problem(found.path, found.what);
    const std::int64_t tokens = p.cp > 0 ? job_.batch.micro * (m.seq_len / p.cp) : 0;
    if (p.sequence_parallel && p.tp == 1)
      problem("parallel.sequence_parallel", "splits tokens over tp ranks, and tp is 1; leave it out");
    else if (p.sequence_parallel && p.tp > 1 && tokens > 0 && tokens % p.tp != 0)
      problem("parallel.sequence_parallel",
              to_string(tokens) + (p.cp > 1 ? " tokens of a microbatch's part" : " tokens of a microbatch") +
                  " cannot be split evenly over tp " + to_string(p.tp));
    if (p.zero >= 1 && p.zero_group == 1)
      problem("parallel.zero_group",
              "a group of 1 shards nothing: set zero to 0, or zero_group to 0 for all ranks");
    else if (p.zero >= 1 && p.zero_group > 1 && p.gradient_ranks() % p.zero_group != 0)
      problem("parallel.zero_group",
              to_string(p.zero_group) + " does not divide " + (p.cp > 1 ? "dp x cp " : "dp ") +
                  to_string(p.gradient_ranks()) +
                  " (nearest valid: " + nearest_divisor(p.zero_group, p.gradient_ranks()) + ")");
    if (p.bucket_bytes > 0 && p.bucket_bytes < kMinBucket)
      problem("parallel.bucket_bytes", to_string(p.bucket_bytes) +
                                           " is less than a part of any use (nearest valid: " +
                                           to_string(kMinBucket) + ", or 0 for the default)");
    if (!good(
            {"parallel.virtual_stages", "parallel.schedule", "batch.global", "batch.micro", "model.layers"}))
      return;
    if (std::min({p.pp, p.dp, p.virtual_stages, m.layers, job_.batch.micro}) < 1) return;
    what = parallel::split_problem(job_.model.layers, p.pp * p.virtual_stages);
    if (!what.empty()) return problem("parallel.pp", what);
    if (const auto large = size_problem(job_)) return problem(large->path, large->what);
    for (const std::int64_t global : job_.batch.sizes()) {
      const std::int64_t microbatches = job_.microbatches(global);
      if (microbatches < 1) return;
      what = parallel::schedule_problem({.kind = p.schedule,
                                         .stages = static_cast<int>(p.pp),
                                         .virtual_stages = static_cast<int>(p.virtual_stages),
                                         .microbatches = static_cast<int>(microbatches),
                                         .pass = parallel::Pass::train});
      if (!what.empty()) return problem("parallel.schedule", what);
    }
    if (p.pp == 1 && p.virtual_stages > 1)
      problem("parallel.virtual_stages", "a pipeline of one stage has one chunk (nearest valid: 1)");
  }
  // Ranks of a context-parallel group have two chunks of each sequence.
  void context(const parallel::ParallelOptions& p) {
    if (p.cp <= 1) return;
    const std::int64_t length = job_.model.seq_len, chunks = 2 * p.cp;
    if (good({"model.seq_len"}) && length > 0 && length % chunks != 0)
      problem("parallel.cp",
              "seq_len " + to_string(length) + " cannot be cut into 2 x cp = " + to_string(chunks) +
                  " chunks of the same size (nearest valid: " + nearest_cp(p.cp, length) + ")");
    const job::ModelOptions& m = job_.model;
    if (p.cp_comm == parallel::ContextComm::all_to_all && p.tp > 0 &&
        model::tensor_parallel_problem(m, p.tp, true).empty() && good({"model.heads", "model.kv_heads"}) &&
        !model::heads_divide(m, p.tp, p.cp))
      problem("parallel.cp_comm",
              "cp " + to_string(p.cp) + " must divide the heads of a rank, " + to_string(m.heads / p.tp) +
                  ", and divide or be a multiple of its kv_heads, " +
                  to_string(model::local_kv_heads(m, p.tp)) + " (nearest valid: all_gather)");
    if (job_.loss.dpo.on())
      problem("parallel.cp", "loss.dpo compares whole answers, and cp cuts them (nearest valid: 1)");
  }
  static std::string nearest_cp(std::int64_t cp, std::int64_t length) {
    return length % 2 == 0 ? nearest_divisor(cp, length / 2) : "1";
  }
  static constexpr std::int64_t kMinBucket = 1 << 10;  // bytes

  job::JobSpec& job_;
  const Places& places_;
  std::optional<int> preset_;
  Problems& problems_;
};

}  // namespace

void complete_and_check(job::JobSpec& job, const Places& places, std::optional<int> preset,
                        Problems& problems) {
  Checker(job, places, preset, problems).run();
}

}  // namespace trainerd::core::spec
