#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/output.h"
#include "core/spec/changes.h"
#include "io/metrics/report/comparison.h"
#include "io/metrics/report/load.h"

namespace trainerd::apps {

int report_command(const ReportArgs& args) {
  std::vector<io::ComparedRun> runs;
  std::vector<std::string> jobs;
  const std::vector<std::string> labels = io::run_labels(args.directories);
  for (std::size_t i = 0; i < args.directories.size(); ++i) {
    runs.push_back({labels[i], args.directories[i], io::load_report(args.directories[i])});
    jobs.push_back(runs.back().report.job_yaml);
  }
  std::vector<io::DifferingKey> keys;
  for (const core::spec::KeyValues& row : core::spec::differing_keys(jobs))
    keys.push_back({row.key, row.values});
  const std::string page =
      runs.size() == 1 ? io::render(runs.front().report) : io::render_comparison(runs, keys);
  if (args.out.empty()) {
    print(page);
  } else {
    write_file("--out", args.out, page);
    print("written to " + args.out + "\n");
  }
  return 0;
}

}  // namespace trainerd::apps
