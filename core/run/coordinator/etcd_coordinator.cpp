#include "core/run/coordinator/etcd_coordinator.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <iomanip>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "core/run/coordinator/etcd_client.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// Runs while the machine sleeps, too: what others count meanwhile is counted here.
double boot_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::string one_decimal(double seconds) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << seconds;
  return text.str();
}

// Of one request: a member that does not answer leaves time to ask another before the lease is over.
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
  bool leads() const override { return boot_seconds() < valid_until_; }
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
  void keep();
  void report(News news);

  const EtcdOptions options_;
  const std::string key_;
  EtcdClient client_;  // of the caller's thread
  base::UniqueFd event_;
  std::string lease_, host_;
  std::int64_t epoch_ = 0;
  std::atomic<double> valid_until_{kNever};  ///< by the clock of `boot_seconds`

  std::mutex mutex_;  // of what follows
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

std::optional<LeadRecord> EtcdCoordinator::leader() {
  const auto found = client_.get(key_);
  if (!found) return std::nullopt;
  const json j = json::parse(found->text, nullptr, false);
  if (!j.is_object())
    throw base::comm_error("the key " + key_ + " in etcd is none that trainerd wrote: '" + found->text + "'");
  return LeadRecord{j.value("address", ""), j.value("host", ""), found->create_revision};
}

bool EtcdCoordinator::claim(const std::string& host) {
  resign();
  host_ = host;
  const double sent = boot_seconds();
  const EtcdClient::Lease lease = client_.grant(static_cast<std::int64_t>(std::ceil(options_.dead_seconds)));
  // A first answer may have been lost on its way: then the key is there, with this lease.
  const EtcdClient::Value found = client_.create(key_, value(""), lease.id);
  if (found.lease != lease.id) {
    client_.revoke(lease.id);
    return false;
  }
  lease_ = lease.id;
  epoch_ = found.create_revision;
  valid_until_ = valid_from(sent, lease.ttl_seconds);
  stops_ = false;
  // Signals are for the agent's own thread.
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
  valid_until_ = kNever;
  if (!led) return;
  try {
    client_.revoke(lease_);
  } catch (const base::CommError&) {  // it ends by itself
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

/// Renews the lease until it is over.
void EtcdCoordinator::keep() {
  ::prctl(PR_SET_NAME, "trainerd:lease");
  EtcdClient client(options_.members, patience(options_));
  bool failing = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const double pause = failing ? options_.every_seconds / 2 : options_.every_seconds;
      changed_.wait_for(lock, std::chrono::duration<double>(pause), [this] { return stops_; });
      if (stops_) return;
    }
    const double sent = boot_seconds();
    std::string why;
    try {
      const std::optional<double> ttl = client.keep_alive(lease_);
      if (!ttl) {
        valid_until_ = kNever;
        return report({"etcd says that the lease of this agent's lead is over", true});
      }
      valid_until_ = valid_from(sent, *ttl);
      if (std::exchange(failing, false)) report({"the coordinator " + name() + " answers again"});
    } catch (const std::exception& error) {
      why = error.what();
    }
    if (!leads())
      return report({"the lease of this agent's lead was not renewed for " +
                         one_decimal(options_.dead_seconds) + " s (supervise.dead_after)" +
                         (why.empty() ? "" : ": " + why),
                     true});
    if (!why.empty() && !std::exchange(failing, true))
      report({"the lease of this agent's lead cannot be renewed: " + why +
              "; the run ends here if that lasts " + one_decimal(options_.dead_seconds) +
              " s (supervise.dead_after)"});
  }
}

}  // namespace

std::unique_ptr<Coordinator> make_etcd_coordinator(const EtcdOptions& options) {
  return std::make_unique<EtcdCoordinator>(options);
}

}  // namespace trainerd::core::run
