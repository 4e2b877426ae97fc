#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/run/nodes/partner.h"
#include "core/run/wire/channel.h"

// How a NodeCopy crosses a connection between two agents: a message that describes it, then the bytes of
// each rank. All throw CommError when the connection ends.

namespace trainerd::core::run {

/// A peer that does not read or write for so long, in one step of a conversation, is lost.
constexpr double kPeerSeconds = 30;

std::span<const std::byte> bytes_of(const NodeCopy::Rank& rank);
/// The next message. Throws CommError where there is none.
std::string received(Channel& channel);
/// A message whose receiver throws a CommError with `why`.
std::string refusal(const std::string& why);

/// The description alone. `receive_outline` leaves each rank's memory empty, and throws CommError for a
/// refusal.
void send_outline(Channel& channel, const NodeCopy& copy);
NodeCopy receive_outline(Channel& channel);
/// The description and the bytes.
void send_copy(Channel& channel, const NodeCopy& copy);
/// Into the memory of `room` where a rank's bytes fit it and nothing else uses it, else into new memory.
NodeCopy receive_copy(Channel& channel, NodeCopy room);
/// Whether all bytes have their checksums.
bool is_whole(const NodeCopy& copy);

}  // namespace trainerd::core::run
