#include "core/spec/spec.h"

#include "core/spec/check.h"
#include "core/spec/compose.h"
#include "core/spec/document.h"
#include "core/spec/fields.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"

namespace trainerd::core {

JobSpec parse_job(const std::string& text, const std::string& file,
                  const std::vector<std::string>& overrides) {
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
  // An empty file stays an error, whatever the overrides say.
  if (!empty)
    for (const std::string& argument : overrides) apply_override(root, argument, problems);
  const std::optional<int> preset = merge_preset(root, problems);

  JobSpec job;
  std::vector<Field> fields = fields_of(job);
  const Places places = read_fields(root, fields, problems);
  if (root.kind == Node::Kind::map) complete_and_check(job, places, preset, problems);
  problems.throw_if_any();
  return job;
}

JobSpec load_job(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_job(read_text_file(path), path, overrides);
}

std::vector<std::string> model_preset_names() { return names_of(model_preset_texts()); }

}  // namespace trainerd::core
