#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// Parses, composes and checks a job. Files that it extends are merged if `around` has a directory.
/// `overrides` are "a.b=value" texts, applied in order over the file and checked like it. Texts are expanded
/// (expand.h) and automatic values chosen (resolve.h). Throws SpecError with all problems, one per line:
/// "file:line:column: path: what is wrong; the nearest valid key or value". `file` is a name for messages.
job::JobSpec parse_job(const std::string& text, const std::string& file,
                       const std::vector<std::string>& overrides = {}, const Surroundings& around = {});
/// Reads the file and parses it as above, with its directory. Relative data paths that exist become absolute.
job::JobSpec load_job(const std::string& path, const std::vector<std::string>& overrides = {},
                      Surroundings around = {});

/// The resolved job as YAML that `parse_job` reads back to the same value.
std::string to_yaml(const job::JobSpec& job);

/// The section `model` of the resolved job.
std::string model_yaml(const job::ModelOptions& model);

/// The spec's reference as Markdown, one table per section: key, type, default, meaning. It is made from the
/// parser's own table.
std::string reference_markdown();

/// Texts about one key, for the reference, the man page and shell completion.
struct KeyText {
  std::string path;                ///< "optimizer.schedule.warmup"
  std::string type;                ///< in Markdown, with literal words in backquotes
  std::string fallback;            ///< the default, in Markdown; "required", or empty if there is none
  std::string meaning;             ///< in Markdown
  std::vector<std::string> words;  ///< every value, or those with a name; empty: any text or number
};
/// All settable keys, in the order of the table.
std::vector<KeyText> job_keys();

/// The JSON Schema of a job, from the same table (schema.cpp lists what it leaves to the parser).
std::string job_schema();

/// Names of the model presets.
std::vector<std::string> model_preset_names();

}  // namespace trainerd::core::spec
