#pragma once

#include <exception>

#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// The message of a worker that ends with `error`. `in_steps`: its state was loaded and it trained. Only then
/// may a failed communication or device be cured by a restart; errors of data and job, or at the start, would
/// come again.
Failed failure_of(const std::exception& error, bool in_steps);

/// Sends it to the agent, if the agent is alive.
void send_failure(Channel& agent, const Failed& failure);

}  // namespace trainerd::core::run
