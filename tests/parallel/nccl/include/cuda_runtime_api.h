#pragma once

// Stands in for CUDA's header of the same name: the part of the runtime that communicators use, on the host.
// A stream is a thread that runs its work in order, so that missing ordering by events shows.

#include <cstddef>
#include <functional>

struct StandInStream;
struct StandInEvent;
using cudaStream_t = StandInStream*;
using cudaEvent_t = StandInEvent*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotReady = 600 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned flags, int priority);
/// Work on the stream still runs.
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t);

namespace trainerd::test {

/// Adds work to a stream.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace trainerd::test
