#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "io/tokens/token_source.h"

namespace trainerd::apps {

int data_inspect_command(const DataInspectArgs& args) {
  io::DataOptions options;
  const bool tokens = args.format.empty() ? args.path.ends_with(".bin") : args.format == "tokens";
  options.format = tokens ? io::DataFormat::tokens : io::DataFormat::text;
  std::string description = io::describe_data(args.path, options);
  if (!description.ends_with('\n')) description += '\n';
  print(description);
  return kExitDone;
}

}  // namespace trainerd::apps
