#include "core/run/coordinator/etcd_coordinator.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/run/coordinator/etcd_client.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/seconds_text.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

constexpr double kExpired = -std::numeric_limits<double>::infinity();

/// A clock that also runs while the machine is suspended, as other hosts' clocks do.
double boot_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Time limit of one request: it leaves time to ask another member before the lease ends.
double patience(const EtcdOptions& options) { return std::clamp(options.dead_seconds / 4, 0.25, 2.0); }

class EtcdCoordinator final : public Coordinator {
 public:
  explicit EtcdCoordinator(const EtcdOptions& options)
      : options_(options),
        key_("/trainerd/" + options.run + "/leader"),
        client_(options.members, patience(options)),
        event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  }
  ~EtcdCoordinator() override { resign(); }

  std::optional<LeadRecord> leader() override;
  bool claim(const std::string& host) override;
  void publish(const std::string& address) override;
  void resign() override;
  bool leads() const override;
  std::int64_t epoch() const override { return epoch_; }
  std::vector<News> take() override;
  int event_fd() const override { return event_.get(); }
  std::string own_address() override { return client_.own_address(); }
  const std::string& run() const override { return options_.run; }
  std::string name() const override;

 private:
  std::string value(const std::string& address) const {
    return json{{"address", address}, {"host", host_}}.dump();
  }
  double valid_from(double sent, double ttl_seconds) const {
    return sent + std::min(ttl_seconds, options_.dead_seconds);
  }
  void give_back(const std::string& lease);
  void keep();
  void report(News news);
  bool extend(double until);
  double left_seconds() const;

  const EtcdOptions options_;
  const std::string key_;
  EtcdClient client_;  // for the caller's thread
  base::UniqueFd event_;
  std::string lease_, host_;
  std::int64_t epoch_ = 0;
  mutable std::mutex lease_mutex_;
  mutable double valid_until_ = kExpired;  ///< by `boot_seconds`; guarded by `lease_mutex_`

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stops_ = false;
  std::vector<News> news_;
  std::thread thread_;
};

std::string EtcdCoordinator::name() const {
  std::string text;
  for (const base::Endpoint& member : options_.members)
    text += (text.empty() ? "etcd://" : ",") + member.text();
  return text;
}

// A lease that may have expired once stays lost: writes may have been left out meanwhile.
bool EtcdCoordinator::leads() const {
  const std::lock_guard lock(lease_mutex_);
  if (boot_seconds() >= valid_until_) valid_until_ = kExpired;
  return valid_until_ != kExpired;
}

double EtcdCoordinator::left_seconds() const {
  const std::lock_guard lock(lease_mutex_);
  return valid_until_ - boot_seconds();
}

/// Sets the lease's end. Returns false, and the lease stays lost, if it may have expired before.
bool EtcdCoordinator::extend(double until) {
  const std::lock_guard lock(lease_mutex_);
  if (boot_seconds() >= valid_until_) valid_until_ = kExpired;
  else valid_until_ = until;
  return valid_until_ != kExpired;
}

std::optional<LeadRecord> EtcdCoordinator::leader() {
  const auto found = client_.get(key_);
  if (!found) return std::nullopt;
  const json j = json::parse(found->text, nullptr, false);
  const auto text_at = [&j](const char* key) {
    const auto at = j.find(key);
    return at != j.end() && at->is_string() ? std::optional(at->get<std::string>()) : std::nullopt;
  };
  const auto address = text_at("address"), host = text_at("host");
  if (!address || !host)
    throw base::comm_error("the key " + key_ + " in etcd is none that trainerd wrote: '" + found->text + "'");
  return LeadRecord{*address, *host, found->create_revision};
}

bool EtcdCoordinator::claim(const std::string& host) {
  resign();
  host_ = host;
  const double sent = boot_seconds();
  const EtcdClient::Lease lease = client_.grant(static_cast<std::int64_t>(std::ceil(options_.dead_seconds)));
  // If the answer to a first request was lost and the request repeated, the key exists with this lease.
  EtcdClient::Value found;
  try {
    found = client_.create(key_, value(""), lease.id);
  } catch (const base::CommError&) {
    // The key may exist all the same, and would then keep all others from the lead.
    give_back(lease.id);
    throw;
  }
  if (found.lease != lease.id) {
    give_back(lease.id);
    return false;
  }
  lease_ = lease.id;
  epoch_ = found.create_revision;
  {
    const std::lock_guard lock(lease_mutex_);
    valid_until_ = valid_from(sent, lease.ttl_seconds);
  }
  take();  // drops events of an earlier lead
  stops_ = false;
  // Signals must be delivered to the agent's main thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { keep(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

void EtcdCoordinator::publish(const std::string& address) {
  if (!client_.replace(key_, epoch_, value(address), lease_) || !leads())
    throw base::comm_error("this agent does not lead any more: another has the key " + key_ + " in etcd");
}

void EtcdCoordinator::resign() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const bool led = leads();
  extend(kExpired);
  if (led) give_back(lease_);
}

void EtcdCoordinator::give_back(const std::string& lease) {
  try {
    client_.revoke(lease);
  } catch (const base::CommError&) {  // the lease expires by itself
  }
}

std::vector<Coordinator::News> EtcdCoordinator::take() {
  std::uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof(count));
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void EtcdCoordinator::report(News news) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back(std::move(news));
  }
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof(one));
}

/// Renews the lease until it ends.
void EtcdCoordinator::keep() {
  ::prctl(PR_SET_NAME, "trainerd:lease");
  EtcdClient client(options_.members, patience(options_));
  std::string problem;  // of the latest try
  bool reported = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const double every = reported ? options_.every_seconds / 2 : options_.every_seconds;
      const double pause = std::clamp(left_seconds(), 0.0, every);
      changed_.wait_for(lock, std::chrono::duration<double>(pause), [this] { return stops_; });
      if (stops_) return;
    }
    const double sent = boot_seconds();
    try {
      // The request ends with the lease at the latest, so that the loss is noticed at once.
      const double left = left_seconds();
      if (left > 0) {
        const std::optional<double> ttl = client.keep_alive(lease_, left);
        if (!ttl) {
          extend(kExpired);
          return report({"etcd says that the lease of this agent's lead is over", true});
        }
        problem.clear();
        if (extend(valid_from(sent, *ttl)) && std::exchange(reported, false))
          report({"the coordinator " + name() + " answers again"});
      }
    } catch (const std::exception& error) {
      if (problem.empty() || leads()) problem = error.what();
    }
    if (!leads())
      return report({"the lease of this agent's lead was not renewed for " +
                         base::one_decimal(options_.dead_seconds) + " s (supervise.dead_after)" +
                         (problem.empty() ? "" : ": " + problem),
                     true});
    if (!problem.empty() && !std::exchange(reported, true))
      report({"the lease of this agent's lead cannot be renewed: " + problem +
              "; the run ends here if that lasts " + base::one_decimal(options_.dead_seconds) +
              " s (supervise.dead_after)"});
  }
}

}  // namespace

std::unique_ptr<Coordinator> make_etcd_coordinator(const EtcdOptions& options) {
  return std::make_unique<EtcdCoordinator>(options);
}

}  // namespace trainerd::core::run
