#include <algorithm>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/cpu/host_reduce.h"
#include "parallel/comm/gloo/gloo_engine.h"

// Messages of exchanges: a header, and a payload that the receiver requests once the header is as expected.

namespace trainerd::parallel {
namespace {

// Gloo identifies messages between two ranks by slot numbers. Collectives count from 1; messages start here
// and use two each.
constexpr std::uint64_t kExchangeSlots = std::uint64_t{1} << 62;
std::uint64_t header_slot(std::uint64_t sequence) { return kExchangeSlots + 2 * sequence; }
std::uint64_t payload_slot(std::uint64_t sequence) { return kExchangeSlots + 2 * sequence + 1; }

}  // namespace

bool GlooEngine::send(std::int64_t to, const kernels::Tensor& x, const char* label) {
  base::check(to != rank() && to >= 0 && to < size(), "a message goes to another rank of the group");
  auto message = std::make_unique<Outgoing>();
  message->record = message_record(x, label, ++sent_[static_cast<std::size_t>(to)]);
  message->data.assign(x.data, x.data + x.bytes());
  message->peer = to;
  const std::uint64_t sequence = message->record.sequence;
  try {
    message->header = buffer(&message->record, sizeof(OpRecord));
    message->header->send(static_cast<int>(to), header_slot(sequence));
    if (x.bytes() > 0) {
      message->payload = buffer(message->data.data(), x.bytes());
      message->payload->send(static_cast<int>(to), payload_slot(sequence));
    }
  } catch (const std::exception& error) {
    lost(to, message->record, error.what());
  }
  {
    const std::lock_guard lock(outgoing_mutex_);
    outgoing_.push_back(std::move(message));
  }
  outgoing_changed_.notify_all();
  if (!sender_.joinable()) sender_ = std::thread([this] { send_out(); });
  return true;
}

// Gloo has no query for whether a message has left, only a wait. This thread keeps each message until that
// wait returns.
void GlooEngine::send_out() {
  std::unique_lock lock(outgoing_mutex_);
  for (;;) {
    outgoing_changed_.wait(lock, [&] { return stop_ || !outgoing_.empty(); });
    if (outgoing_.empty()) return;
    Outgoing& message = *outgoing_.front();
    lock.unlock();
    try {
      const double deadline = base::monotonic_seconds() + options_.deadline_seconds;
      for (gloo::transport::UnboundBuffer* part : {message.header.get(), message.payload.get()}) {
        if (part == nullptr) continue;
        const GlooWorld::Links::Waiting waiting(links_, *part);
        part->waitSend(gloo_timeout(deadline));
      }
    } catch (const std::exception& error) {
      links_.end(describe(message.record) + " was not taken by " + name_of(message.peer) + " (" +
                 error.what() + ")");
    }
    lock.lock();
    // After the end the connections are closed: nobody reads the remaining messages.
    if (links_.ended()) outgoing_.clear();
    else outgoing_.pop_front();
    outgoing_changed_.notify_all();
  }
}

MessageTicket GlooEngine::post_receive(std::int64_t from, const kernels::Tensor& x, const char* label) {
  base::check(from != rank() && from >= 0 && from < size(), "a message comes from another rank of the group");
  const std::uint64_t sequence = ++received_[static_cast<std::size_t>(from)];
  Receive& r = receives_[{from, sequence}];  // elements of a map keep their address
  r.mine = message_record(x, label, sequence);
  r.data = x.data;
  try {
    r.header = buffer(&r.sent, sizeof(OpRecord));
    r.header->recv(static_cast<int>(from), header_slot(sequence));
  } catch (const std::exception& error) {
    lost(from, r.mine, error.what());
  }
  return {from, sequence};
}

void GlooEngine::wait(std::span<const MessageTicket> receives, double deadline_seconds) {
  const double deadline = base::monotonic_seconds() + deadline_seconds;
  std::vector<Buffer> payloads(receives.size());
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const auto found = receives_.find({receives[i].peer, receives[i].index});
    if (found == receives_.end()) continue;
    Receive& r = found->second;
    const std::int64_t from = receives[i].peer;
    wait_received(*r.header, from, r.mine, deadline);
    if (r.sent.sequence != r.mine.sequence || r.sent.bytes != r.mine.bytes || r.sent.dtype != r.mine.dtype)
      fail("a message is not what its receiver expects: " + name_of(from) + " sent " + describe(r.sent) +
           ", " + name_of(rank()) + " receives " + describe(r.mine));
    if (r.mine.bytes == 0) continue;
    try {
      payloads[i] = buffer(r.data, r.mine.bytes);
      payloads[i]->recv(static_cast<int>(from), payload_slot(r.mine.sequence));
    } catch (const std::exception& error) {
      lost(from, r.mine, error.what());
    }
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const auto found = receives_.find({receives[i].peer, receives[i].index});
    if (found == receives_.end()) continue;
    if (payloads[i]) wait_received(*payloads[i], receives[i].peer, found->second.mine, deadline);
    receives_.erase(found);
  }
}

void GlooEngine::drop(const MessageTicket& receive) {
  const auto found = receives_.find({receive.peer, receive.index});
  if (found == receives_.end() || links_.ended()) return;
  links_.end(name_of(rank()) + " gave up " + describe(found->second.mine));
}

}  // namespace trainerd::parallel
