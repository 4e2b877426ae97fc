#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/comm/gloo/gloo_world.h"

namespace trainerd::parallel {

/// The connections of one rank, shared by its engines: an error in one group closes those of all groups.
class GlooWorld::Links {
 public:
  explicit Links(std::shared_ptr<gloo::transport::Device> device) : device_(std::move(device)) {}

  std::shared_ptr<gloo::transport::Device>& device() { return device_; }
  void add(const std::shared_ptr<gloo::Context>& context);
  bool ended() const { return ended_; }
  std::string why() const;
  /// The first caller's text is kept. Any thread.
  void end(std::string_view why);

  /// Registers a buffer while a thread blocks on it, so that `end` wakes the thread. Closing connections does
  /// not wake every wait.
  class Waiting {
   public:
    Waiting(Links& links, gloo::transport::UnboundBuffer& buffer);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Links& links_;
    gloo::transport::UnboundBuffer& buffer_;
  };

 private:
  std::shared_ptr<gloo::transport::Device> device_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<gloo::Context>> contexts_;
  std::vector<gloo::transport::UnboundBuffer*> waiting_;
  std::string why_;
  std::atomic<bool> ended_{false};
};

}  // namespace trainerd::parallel
