#pragma once

#include <memory>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/shm/group_context.h"

namespace trainerd::parallel {

/// The communicator of one rank in one group over shared memory, for ranks that are threads or processes (see
/// EngineCommunicator). `backend` must be a CPU backend: its work is done when a call returns, so tensors can
/// be read at once. `recorder` may be null and must outlive the communicator. Throws std::logic_error if the
/// rank has made one before.
std::unique_ptr<Communicator> make_shared_communicator(const GroupContext& context, kernels::Backend& backend,
                                                       FlightRecorder* recorder);

}  // namespace trainerd::parallel
