#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/spec/spec.h"

namespace trainerd::apps {

int validate_command(const ValidateArgs& args) {
  print(core::to_yaml(core::load_job(args.job, args.overrides)));
  return kExitDone;
}

}  // namespace trainerd::apps
