#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// Parses, composes and checks a job: over the files that it extends, where `around` has a directory.
/// `overrides` are "a.b=value" texts, applied in order over the file and checked like it. Texts are expanded
/// (expand.h), automatic values chosen (resolve.h). Throws SpecError with every problem, one per line:
/// "file:line:column: path: what is wrong; the nearest valid key or value". `file` is a name for messages.
job::JobSpec parse_job(const std::string& text, const std::string& file,
                       const std::vector<std::string>& overrides = {}, const Surroundings& around = {});
/// Reads the file, then as above with its directory; relative data paths that exist become absolute.
job::JobSpec load_job(const std::string& path, const std::vector<std::string>& overrides = {},
                      Surroundings around = {});

/// The resolved job as YAML that `parse_job` reads back to the same value.
std::string to_yaml(const job::JobSpec& job);

/// The section `model` of such a job.
std::string model_yaml(const job::ModelOptions& model);

/// The spec's reference as a Markdown table for each section: key, type, default, meaning. Made from the
/// table that the parser itself reads by.
std::string reference_markdown();

/// One key of a job in words: what the reference, the man page and shell completion say of it.
struct KeyText {
  std::string path;      ///< "optimizer.schedule.warmup"
  std::string type;      ///< as the reference writes it: Markdown, with words that are typed in backquotes
  std::string fallback;  ///< the default, in the same way; "required", or empty where there is none
  std::string meaning;   ///< the same
  std::vector<std::string> words;  ///< every value, or those that have a name; empty: any text or number
};
/// Every key that can be set, in the order of the table.
std::vector<KeyText> job_keys();

/// The JSON Schema of a job, made from the same table (schema.cpp says what it leaves to the parser).
std::string job_schema();

/// Names of the model presets.
std::vector<std::string> model_preset_names();

}  // namespace trainerd::core::spec
