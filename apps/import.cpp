#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "apps/signals.h"
#include "core/hf/convert.h"
#include "core/spec/spec.h"

namespace trainerd::apps {

int import_command(const ImportArgs& args) {
  RemoveOnSignal interrupted;
  const core::hf::Imported imported = core::hf::import_weights(
      {.from = args.from, .out = args.out, .on_partial = [&](const std::string& p) { interrupted.set(p); }});
  for (const std::string& note : imported.notes) say(args.from + ": " + note);
  if (imported.tokenizer.empty()) say(args.from + ": has no tokenizer's files");
  core::job::ModelOptions model = imported.model;
  model.from = imported.path;
  print(core::spec::model_yaml(model));
  return kExitDone;
}

}  // namespace trainerd::apps
