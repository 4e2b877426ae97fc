#pragma once

#include <exception>

#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// The message of a worker that ends by `error`. `in_steps`: its state was loaded and it trained. Then
/// a failed communication or device may be gone when the workers start again; errors of data and job, and
/// what fails while a rank starts, come again.
Failed failure_of(const std::exception& error, bool in_steps);

/// Sends it to the agent, if it is there.
void send_failure(Channel& agent, const Failed& failure);

}  // namespace trainerd::core::run
