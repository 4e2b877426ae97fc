#include "core/spec/spec.h"

#include <filesystem>
#include <set>
#include <utility>

#include "core/spec/bases.h"
#include "core/spec/check.h"
#include "core/spec/compose.h"
#include "core/spec/document.h"
#include "core/spec/expand.h"
#include "core/spec/fields.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/resolve.h"
#include "core/spec/settings.h"
#include "core/spec/weights_source.h"

namespace trainerd::core::spec {
namespace {

void add_text_keys(const std::vector<Field>& fields, const std::string& prefix, std::set<std::string>& keys) {
  for (const Field& field : fields) {
    const std::string path = prefix + field.path;
    if (std::holds_alternative<std::string*>(field.storage) ||
        std::holds_alternative<std::vector<std::string>*>(field.storage))
      keys.insert(path);
    if (const auto* list = std::get_if<MapList>(&field.storage))
      list->plain_fields(
          [&](const std::vector<Field>& of_item) { add_text_keys(of_item, path + "[].", keys); });
  }
}

std::set<std::string> text_keys(const std::vector<Field>& fields) {
  std::set<std::string> keys;
  add_text_keys(fields, "", keys);
  return keys;
}

}  // namespace

namespace {

/// The job as written: its file merged over the files that it extends, and settings over it. `whole`: all
/// files could be read.
struct Written {
  Node root;
  std::vector<Node> replaced;  ///< replaced values of the files: not part of the job, but checked like it
  bool whole = false;
};

Written written_job(const JobText& file, const Layers& layers, const Surroundings& around,
                    Problems& problems) {
  Written job;
  const int source = problems.add_source(file.name, Problems::SourceKind::file);
  try {
    job.root = parse_document(file.text, source, "", problems);
    use_first_names(job.root, problems);
  } catch (const Stop&) {
    return job;
  }
  Node& root = job.root;
  const bool empty = root.kind == Node::Kind::nothing;
  root.place = empty ? Place{source, 1, 1} : root.place;
  Bases bases = merge_bases(root, {file.name, around.directory}, around.environment, problems);
  job.replaced = std::move(bases.replaced), job.whole = bases.whole;
  // An empty file is an error, even with overrides.
  if (empty) return job;
  for (const std::string& argument : layers.overrides) apply_override(root, argument, problems);
  for (const Setting& setting : layers.over)
    put_value(root, first_name(setting.path), setting.value, setting.place, problems);
  for (const Setting& setting : layers.below)
    if (const std::string path = first_name(setting.path); find_value(root, path) == nullptr)
      put_value(root, path, setting.value, setting.place, problems);
  return job;
}

// Makes the paths of a job's data files relative to its own file.
void anchor_files(job::JobSpec& job, const std::string& directory) {
  std::vector<std::vector<std::string>*> lists{&job.data.train, &job.data.valid, &job.data.mask,
                                               &job.data.valid_mask};
  for (io::DataSource& source : job.data.sources) lists.insert(lists.end(), {&source.path, &source.mask});
  for (io::ValidationSet& set : job.data.valid_sets) lists.insert(lists.end(), {&set.path, &set.mask});
  for (std::vector<std::string>* paths : lists) anchor_paths(*paths, directory);
  std::vector<std::string*> files;
  for (job::ChoiceSet& set : job.evaluate.choices) files.push_back(&set.path);
  if (job.evaluate.tokenizer != "bytes") files.push_back(&job.evaluate.tokenizer);
  for (std::string* file : files) {
    std::vector<std::string> path{*file};
    if (!file->empty()) anchor_paths(path, directory);
    *file = path[0];
  }
}

void judge(job::JobSpec& job, const Places& places, std::optional<int> preset, const Surroundings& around,
           Problems& problems) {
  resolve_automatic(job, places, around, problems);
  if (!around.directory.empty()) anchor_files(job, around.directory);
  complete_and_check(job, places, preset, problems);
}

/// The problems that the job has on two machines that have nothing in common.
Problems problems_on_every_machine(const job::JobSpec& job, const Places& places, std::optional<int> preset,
                                   const Surroundings& around, const Problems& before) {
  const auto on = [&](const Machine& machine) {
    Surroundings assumed = around;
    assumed.machine = [machine] { return machine; };
    assumed.remark = {};
    job::JobSpec judged = job;
    Problems problems = before;
    judge(judged, places, preset, assumed, problems);
    return problems;
  };
  Problems problems = on({.cores = 1});
  problems.keep_common(on({.cores = 96, .cuda_devices = 8}));
  return problems;
}

}  // namespace

job::JobSpec compose_job(const JobText& file, const Layers& layers, const Surroundings& around,
                         Problems& problems) {
  Written written = written_job(file, layers, around, problems);
  Node& root = written.root;
  job::JobSpec job;
  if (!written.whole && root.kind == Node::Kind::nothing) return job;  // not a YAML document
  std::vector<Field> fields = fields_of(job);
  expand_texts(root, text_keys(fields), around.environment, problems);
  if (!around.directory.empty()) anchor_presets(root, around.directory);
  const std::optional<int> preset = merge_preset(root, problems);
  const auto weights = around.directory.empty() ? nullptr : merge_weights_source(root, around, problems);
  use_given_names(root, problems);
  const Places places = read_fields(root, fields, problems);
  if (weights) check_weights_source(job.model, *weights, places, problems);
  for (const Node& replaced : written.replaced) {
    job::JobSpec unused;
    std::vector<Field> of_unused = fields_of(unused);
    read_fields(replaced, of_unused, problems);
  }
  // Missing keys may be in the file that could not be read.
  if (!written.whole || layers.checked == Checked::values) return job;
  if (root.kind != Node::Kind::map) return job;  // which is a problem
  if (around.machine_asks_others && asks_for_machine(job)) {
    Problems everywhere = problems_on_every_machine(job, places, preset, around, problems);
    if (!everywhere.none()) {
      problems = std::move(everywhere);
      return job;
    }
  }
  judge(job, places, preset, around, problems);
  return job;
}

job::JobSpec parse_job(const std::string& text, const std::string& file,
                       const std::vector<std::string>& overrides, const Surroundings& around) {
  Problems problems;
  job::JobSpec job = compose_job({text, file}, {.overrides = overrides}, around, problems);
  problems.throw_if_any();
  return job;
}

job::JobSpec load_job(const std::string& path, const std::vector<std::string>& overrides,
                      Surroundings around) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  around.directory = directory.empty() ? "." : directory.string();
  return parse_job(read_text_file(path), path, overrides, around);
}

std::vector<std::string> model_preset_names() { return names_of(model_preset_texts()); }

}  // namespace trainerd::core::spec
