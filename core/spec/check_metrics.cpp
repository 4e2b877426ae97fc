#include "core/spec/check_metrics.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "io/http/listen_address.h"
#include "io/otlp/http_post.h"

namespace trainerd::core::spec {
namespace {

void check_mlflow(const io::MlflowOptions& mlflow, const Problems& bad, std::vector<KeyProblem>& problems) {
  const char *const key = "metrics.mlflow.uri", *const experiment = "metrics.mlflow.experiment";
  if (!bad.bad(experiment) && mlflow.experiment.empty())
    problems.push_back({experiment, "is empty (nearest valid: " + io::MlflowOptions{}.experiment + ")"});
  if (bad.bad(key) || !mlflow.logs()) return;
  const std::string& uri = mlflow.uri;
  const std::size_t scheme = uri.starts_with("https://") ? 8 : uri.starts_with("http://") ? 7 : 0;
  const std::string_view rest = std::string_view(uri).substr(scheme);
  const bool visible = std::all_of(uri.begin(), uri.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (scheme == 0 || rest.empty() || rest.front() == '/' || !visible ||
      rest.find_first_of("?#") != std::string_view::npos)
    problems.push_back({key, "expected http://host:port or https://host:port, got " + show(uri)});
  else if (rest.substr(0, rest.find('/')).find('@') != std::string_view::npos)
    problems.push_back(
        {key,
         "holds credentials, which would be written to job.yaml: put them into the environment variables "
         "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"});
}

}  // namespace

std::vector<KeyProblem> metrics_problems(const job::JobSpec& job, const Problems& bad) {
  std::vector<KeyProblem> problems;
  check_mlflow(job.metrics.mlflow, bad, problems);
  const std::string& listen = job.metrics.listen;
  if (!bad.bad("metrics.listen") && job.metrics.serves() && !io::parse_listen_address(listen))
    problems.push_back(
        {"metrics.listen", "expected a numeric host:port with a port of 0 to 65535, or off, got " +
                               show(listen) + " (nearest valid: " + io::MetricsOptions{}.listen + ")"});
  const io::OtlpOptions& otlp = job.metrics.otlp;
  if (!bad.bad("metrics.otlp.endpoint") && otlp.sends() && !io::parse_http_url(otlp.endpoint))
    problems.push_back({"metrics.otlp.endpoint", "expected http://host:port, got " + show(otlp.endpoint) +
                                                     "; for TLS let a collector on this host send it on"});
  return problems;
}

}  // namespace trainerd::core::spec
