#include "core/spec/weights_source.h"

#include <map>
#include <set>
#include <utility>

#include "core/model/identity.h"
#include "core/spec/check_layers.h"
#include "core/spec/compose.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

namespace trainerd::core::spec {
namespace {

/// The keys for such a model, in the form of a job file.
Node keys_of(const job::ModelOptions& model, const std::string& name, Problems& problems) {
  job::JobSpec job;
  job.model = model;
  const int source = problems.add_source(name, Problems::SourceKind::file);
  Node whole = parse_document(to_yaml(job), source, "", problems);
  Node* keys = whole.find("model");
  base::check(keys != nullptr, "a job with a model has a section of it");
  return std::move(*keys);
}

}  // namespace

std::unique_ptr<hf::WeightSource> merge_weights_source(Node& root, const Surroundings& around,
                                                       Problems& problems) {
  Node* model = root.kind == Node::Kind::map ? root.find("model") : nullptr;
  Node* from = model != nullptr && model->kind == Node::Kind::map ? model->find("from") : nullptr;
  if (from == nullptr || from->kind != Node::Kind::scalar || from->text.empty() || problems.bad("model.from"))
    return nullptr;
  if (from->text.find("://") == std::string::npos) from->text = absolute_path(from->text, around.directory);
  std::unique_ptr<hf::WeightSource> weights;
  try {
    weights = hf::open_weights(from->text);
  } catch (const base::Error& error) {
    problems.add(from->place, "model.from", error.what());
    return nullptr;
  }
  if (around.remark)
    for (const std::string& note : weights->notes()) around.remark(weights->path() + ": " + note);
  for (Entry& entry : keys_of(weights->model(), weights->path(), problems).entries)
    if (entry.key != "init") put_below(*model, std::move(entry));
  return weights;
}

void check_weights_source(const job::ModelOptions& model, const hf::WeightSource& weights,
                          const Places& places, Problems& problems) {
  const auto problem = [&](const std::string& key, const std::string& what) {
    const auto place = places.find(key);
    problems.add(place == places.end() ? Place{} : place->second, key, what);
  };
  // Compares settled options: a key may give what is the default of a model without it.
  const auto settled = [](job::ModelOptions options) {
    settle_model(options);
    return model::model_identity(options);
  };
  const auto ours = settled(model), theirs = settled(weights.model());
  const auto of = [](const std::map<std::string, std::string>& identity, const std::string& key) {
    const auto found = identity.find(key);
    return found == identity.end() ? std::string("default") : found->second;
  };
  std::set<std::string> keys;
  for (const auto* identity : {&ours, &theirs})
    for (const auto& [key, value] : *identity) keys.insert(key);
  for (const std::string& key : keys) {
    if (key == "model.seq_len" || problems.bad(key) || of(ours, key) == of(theirs, key)) continue;
    problem(key, of(ours, key) + " is not the " + of(theirs, key) + " of model.from, " + weights.path() +
                     ": leave the key out, or begin from other weights");
  }
  const std::int64_t longest = weights.longest_sequence();
  if (longest > 0 && model.seq_len > longest && !problems.bad("model.seq_len"))
    problem("model.seq_len", std::to_string(model.seq_len) + " is more than the " + std::to_string(longest) +
                                 " tokens that " + weights.path() +
                                 " has positions for (nearest valid: " + std::to_string(longest) + ")");
}

}  // namespace trainerd::core::spec
