#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/spec/spec.h"

namespace trainerd::apps {

int schema_command() {
  print(core::spec::job_schema());
  return kExitDone;
}

}  // namespace trainerd::apps
