#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <iterator>
#include <utility>

#include "io/http/server.h"
#include "io/metrics/sinks.h"

namespace trainerd::io {
namespace {

// Collects several sources into one text. Sources that no longer exist are left out.
std::string scrape_text(const std::vector<std::weak_ptr<prometheus::Collectable>>& sources) {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& source : sources)
    if (const auto alive = source.lock()) {
      std::vector<prometheus::MetricFamily> more = alive->Collect();
      std::move(more.begin(), more.end(), std::back_inserter(families));
    }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

// The endpoint lives as long as the sink, so a scrape after the last step still gets all values.
PrometheusSink::PrometheusSink(const MetricsOptions& options)
    : RunMetrics(options.powercap), server_(std::make_unique<HttpServer>(options.listen)) {
  also_at("/metrics");
}

PrometheusSink::~PrometheusSink() = default;

void PrometheusSink::also_at(const std::string& path) {
  std::vector<std::weak_ptr<prometheus::Collectable>> sources;
  for (const auto& metrics : collectables()) sources.push_back(metrics);
  server_->serve(path, [sources] {
    return HttpReply{.type = "text/plain; version=0.0.4; charset=utf-8", .body = scrape_text(sources)};
  });
}

HttpServer& PrometheusSink::server() { return *server_; }
std::string PrometheusSink::address() const { return server_->address(); }
bool PrometheusSink::moved() const { return server_->moved(); }

}  // namespace trainerd::io
