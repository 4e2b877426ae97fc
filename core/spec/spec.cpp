#include "core/spec/spec.h"

#include <filesystem>
#include <set>

#include "core/spec/bases.h"
#include "core/spec/check.h"
#include "core/spec/compose.h"
#include "core/spec/document.h"
#include "core/spec/expand.h"
#include "core/spec/fields.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/resolve.h"

namespace trainerd::core::spec {
namespace {

std::set<std::string> text_keys(const std::vector<Field>& fields) {
  std::set<std::string> keys;
  for (const Field& field : fields)
    if (std::holds_alternative<std::string*>(field.storage) ||
        std::holds_alternative<std::vector<std::string>*>(field.storage))
      keys.insert(field.path);
  return keys;
}

}  // namespace

job::JobSpec parse_job(const std::string& text, const std::string& file,
                       const std::vector<std::string>& overrides, const Surroundings& around) {
  Problems problems;
  const int source = problems.add_source(file, Problems::SourceKind::file);
  Node root;
  try {
    root = parse_document(text, source, "", problems);
  } catch (const Stop&) {
    problems.throw_if_any();
  }
  const bool empty = root.kind == Node::Kind::nothing;
  root.place = empty ? Place{source, 1, 1} : root.place;
  const Bases bases = merge_bases(root, {file, around.directory}, around.environment, problems);
  // An empty file stays an error, whatever the overrides say.
  if (!empty)
    for (const std::string& argument : overrides) apply_override(root, argument, problems);
  job::JobSpec job;
  std::vector<Field> fields = fields_of(job);
  expand_texts(root, text_keys(fields), around.environment, problems);
  const std::optional<int> preset = merge_preset(root, problems);
  const Places places = read_fields(root, fields, problems);
  for (const Node& replaced : bases.replaced) {
    job::JobSpec unused;
    std::vector<Field> of_unused = fields_of(unused);
    read_fields(replaced, of_unused, problems);
  }
  // What is missing may be in the file that could not be read.
  if (!bases.whole) problems.throw_if_any();
  resolve_automatic(job, places, around, problems);
  for (std::vector<std::string>* paths : {&job.data.train, &job.data.valid})
    if (!around.directory.empty()) anchor_paths(*paths, around.directory);
  if (root.kind == Node::Kind::map) complete_and_check(job, places, preset, problems);
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
