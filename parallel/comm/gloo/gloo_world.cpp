#include "parallel/comm/gloo/gloo_world.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "kernels/base/error.h"
#include "kernels/base/socket.h"
#include "parallel/comm/engine_communicator.h"
#include "parallel/comm/gloo/gloo_engine.h"
#include "parallel/comm/gloo/links.h"
#include "parallel/comm/local_communicator.h"

#ifndef __SANITIZE_THREAD__  // its own epoll_wait tells it which thread waits for which
/// Takes the place of the C library's for Gloo. Its thread asks again at once, and again, while another
/// thread holds the lock of the connection that has something to read. With more threads than cores that
/// thread does not run meanwhile. Yielding after each event lets it.
extern "C" int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) {
  const auto ready = static_cast<int>(
      ::syscall(SYS_epoll_pwait, epoll, events, count, timeout_ms, static_cast<const sigset_t*>(nullptr), 0));
  if (ready > 0) ::sched_yield();
  return ready;
}
#endif

namespace trainerd::parallel {
namespace {

/// Presents our store as Gloo's, with a prefix per group.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(parallel::Store& store, std::string prefix, double deadline_seconds)
      : store_(store), prefix_(std::move(prefix)), deadline_seconds_(deadline_seconds) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = wait_for(store_, prefix_ + key, deadline_seconds_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) wait_for(store_, prefix_ + key, deadline_seconds_);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  parallel::Store& store_;
  std::string prefix_;
  double deadline_seconds_;
};

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  try {
    // Gloo ends the process if it cannot resolve a name, so it gets an address.
    const std::string address = base::own_address(options.host);
    return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
  } catch (const base::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw base::comm_error("cannot communicate from host " + options.host +
                           "; give a name or address of a network interface of this machine (" +
                           error.what() + ")");
  }
}

}  // namespace

void GlooWorld::Links::add(const std::shared_ptr<gloo::Context>& context) {
  const std::lock_guard lock(mutex_);
  contexts_.push_back(context);
}

std::string GlooWorld::Links::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void GlooWorld::Links::end(std::string_view why) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  why_ = why;
  ended_ = true;
  for (const std::weak_ptr<gloo::Context>& weak : contexts_)
    if (const std::shared_ptr<gloo::Context> context = weak.lock()) context->closeConnections();
  for (gloo::transport::UnboundBuffer* buffer : waiting_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

GlooWorld::Links::Waiting::Waiting(Links& links, gloo::transport::UnboundBuffer& buffer)
    : links_(links), buffer_(buffer) {
  const std::lock_guard lock(links_.mutex_);
  if (links_.ended_) throw base::comm_error("the world has ended: " + links_.why_);
  links_.waiting_.push_back(&buffer_);
}

GlooWorld::Links::Waiting::~Waiting() {
  const std::lock_guard lock(links_.mutex_);
  std::erase(links_.waiting_, &buffer_);
}

GlooWorld::GlooWorld(Store& store, std::int64_t rank, const GlooOptions& options)
    : store_(store), rank_(rank), options_(options), links_(std::make_unique<Links>(make_device(options))) {
  struct sigaction action {};
  base::check(::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler != SIG_DFL,
              "a process that communicates by Gloo ignores SIGPIPE");
}

GlooWorld::~GlooWorld() = default;

std::unique_ptr<Communicator> GlooWorld::communicator(kernels::Backend& backend,
                                                      const std::vector<std::int64_t>& group_ranks,
                                                      const std::string& name, FlightRecorder* recorder) {
  const auto place = std::find(group_ranks.begin(), group_ranks.end(), rank_);
  base::check(place != group_ranks.end(), "a rank makes communicators of its own groups");
  if (group_ranks.size() == 1) return make_single_rank(backend);
  std::string key = name;
  for (const std::int64_t rank : group_ranks) key += "-" + std::to_string(rank);
  const auto member = static_cast<int>(place - group_ranks.begin()),
             size = static_cast<int>(group_ranks.size());
  meet(store_, key, member, size, options_.rendezvous_seconds);
  StoreForGloo store(store_, key + "/gloo/", options_.rendezvous_seconds);
  const auto context = std::make_shared<gloo::rendezvous::Context>(member, size);
  try {
    context->setTimeout(
        std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options_.rendezvous_seconds)));
    context->connectFullMesh(store, links_->device());
  } catch (const base::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw base::comm_error("rank " + std::to_string(rank_) + " cannot connect to the members of group " +
                           name + ": " + error.what());
  }
  links_->add(context);
  return std::make_unique<EngineCommunicator<GlooEngine>>(
      std::make_unique<GlooEngine>(*links_, context, name, group_ranks, options_), backend, recorder);
}

void GlooWorld::abort(std::string_view why) { links_->end(why); }

}  // namespace trainerd::parallel
