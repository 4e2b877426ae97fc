#pragma once

#include <memory>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/shm/group_context.h"

namespace trainerd::parallel {

/// The communicator of one rank in one group over shared memory, of threads or of processes (see
/// EngineCommunicator). `backend` is of a CPU: its streams have done their work when a call returns, so
/// tensors may be read at once. `recorder` may be null and outlives the communicator. Throws std::logic_error
/// when the rank has made one before.
std::unique_ptr<Communicator> make_shared_communicator(const GroupContext& context, kernels::Backend& backend,
                                                       FlightRecorder* recorder);

}  // namespace trainerd::parallel
