#include "kernels/cuda/backend/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <string_view>

#include "kernels/cuda/cudnn/attention_library.h"
#include "kernels/cuda/gemm/gemm_library.h"
#include "kernels/cuda/launch/images.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/stream_graph.h"

namespace trainerd::kernels::cuda {
namespace {

class CudaEvent final : public Event {
 public:
  CudaEvent() { check(cudaEventCreate(&event), "making an event"); }
  ~CudaEvent() override { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
  bool recorded = false;
};

const CudaEvent& cuda_event(const Event& event) { return static_cast<const CudaEvent&>(event); }

/// Makes `device` the current CUDA device of the calling thread.
int use_device(int device) {
  check(cudaSetDevice(device), "choosing a CUDA device");
  return device;
}

base::CapacityError no_memory(const char* kind, std::int64_t bytes) {
  cudaGetLastError();  // clears the error, so that a later launch does not report it again
  std::string has;
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess)
    has = "; the device has " + std::to_string(free) + " free of " + std::to_string(total);
  return base::capacity_error("the machine gave no " + std::string(kind) + " memory for " +
                              std::to_string(bytes) + " bytes" + has +
                              ": end what else uses it, or make batch.micro or the model smaller");
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "reading a device's properties");
  return value;
}

}  // namespace

Target describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading a device's properties");
  Target target = cuda_target();
  target.name = properties.name;
  target.sm_version = 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                      attribute(cudaDevAttrComputeCapabilityMinor, device);
  target.sm_count = attribute(cudaDevAttrMultiProcessorCount, device);
  if (target.sm_version < 80)
    throw base::device_error(target.name + " (sm_" + std::to_string(target.sm_version) +
                             ") is too old: CUDA devices from sm_80 (A100) on are served; set device: cpu");
  // Hopper's own instructions are in images of 90a alone.
  const bool hopper = target.sm_version == 90;
  if (image_for(TRAINERD_CUDA_IMAGES, target.sm_version).empty() ||
      (hopper && std::string_view(TRAINERD_CUDA_IMAGES).find("90a") == std::string_view::npos))
    throw base::device_error("this build has no kernels for " + target.name + " (sm_" +
                             std::to_string(target.sm_version) + "): it was compiled for " +
                             TRAINERD_CUDA_IMAGES +
                             "; build it with CMAKE_CUDA_ARCHITECTURES=" + std::to_string(target.sm_version) +
                             (hopper ? "a" : "") + "-real, or by the preset release-gpus");
  std::array<char, 32> bus_id{};
  check(cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device), "reading a device's PCI bus id");
  target.pci_bus_id = bus_id.data();
  target.gemm_library = gemm_library_name();
  target.attention_library = attention_library_name();
  target.attention_workspace = attention_workspace_plans();
  return target;
}

CudaBackend::CudaBackend(int device)
    : device_(use_device(device)),
      target_(describe_device(device)),
      gemms_(std::make_unique<GemmLibrary>(target_.tuning.gemm_workspace_bytes)),
      attention_(make_attention_library(target_)) {}

CudaBackend::~CudaBackend() = default;

void CudaBackend::tune(const Tuning& tuning) {
  target_.tuning = tuning;
  gemms_ = std::make_unique<GemmLibrary>(tuning.gemm_workspace_bytes);
}

Buffer CudaBackend::allocate(MemoryKind kind, std::int64_t bytes) {
  base::check(bytes >= 0, "a negative number of bytes was asked for");
  const std::size_t size = static_cast<std::size_t>(std::max<std::int64_t>(align_up(bytes), kAlignment));
  void* memory = nullptr;
  if (kind == MemoryKind::host) {
    const cudaError_t result = cudaMallocHost(&memory, size);
    if (result == cudaErrorMemoryAllocation) throw no_memory("pinned host", bytes);
    check(result, "allocating pinned host memory");
    std::memset(memory, 0, size);
    return {static_cast<std::byte*>(memory), bytes, [memory] { cudaFreeHost(memory); }};
  }
  const cudaError_t result = cudaMalloc(&memory, size);
  if (result == cudaErrorMemoryAllocation) throw no_memory("device", bytes);
  check(result, "allocating device memory");
  Buffer buffer{static_cast<std::byte*>(memory), bytes, [memory, device = device_] {
                  cudaSetDevice(device);
                  cudaFree(memory);
                }};
  // Our streams do not wait for the default stream, so wait for the zeros here. Memory is only allocated
  // before step 0.
  check(cudaMemset(memory, 0, size), "clearing device memory");
  check(cudaStreamSynchronize(cudaStreamLegacy), "clearing device memory");
  return buffer;
}

void CudaBackend::copy(Stream& stream, const Tensor& from, const Tensor& to) {
  base::check(from.dtype == to.dtype && from.numel() == to.numel(), "copy: both of one dtype and size");
  if (from.bytes() == 0) return;
  check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(from.bytes()), cudaMemcpyDefault,
                        stream_of(stream)),
        "copy");
}

void CudaBackend::fill_zero(Stream& stream, const Tensor& x) {
  if (x.bytes() == 0) return;
  check(cudaMemsetAsync(x.data, 0, static_cast<std::size_t>(x.bytes()), stream_of(stream)), "fill_zero");
}

void CudaBackend::write(Stream& stream, std::span<const std::byte> from, const Tensor& to) {
  base::check(static_cast<std::int64_t>(from.size()) == to.bytes(), "write: as many bytes as the tensor has");
  for (std::int64_t at = 0; at < to.bytes(); at += Staging::kPiece) {
    const std::size_t size = static_cast<std::size_t>(std::min(Staging::kPiece, to.bytes() - at));
    const Staging::Piece piece = staging_.take(static_cast<std::int64_t>(size));
    std::memcpy(piece.data, from.data() + at, size);
    check(cudaMemcpyAsync(to.data + at, piece.data, size, cudaMemcpyDefault, stream_of(stream)), "write");
    staging_.commit(stream_of(stream));
  }
}

// Keeps two pieces in progress, so that the copy to pageable memory overlaps the one from the device.
void CudaBackend::read_back(Stream& stream, const Tensor& from, std::span<std::byte> to) {
  base::check(static_cast<std::int64_t>(to.size()) == from.bytes(),
              "read back: as many bytes as the tensor has");
  struct Pending {
    Staging::Piece piece;
    std::int64_t at;
    std::size_t size;
  };
  std::deque<Pending> pending;
  const auto finish_oldest = [&] {
    const Pending p = pending.front();
    pending.pop_front();
    check(cudaEventSynchronize(p.piece.done), "read back");
    std::memcpy(to.data() + p.at, p.piece.data, p.size);
  };
  for (std::int64_t at = 0; at < from.bytes(); at += Staging::kPiece) {
    if (pending.size() == 2) finish_oldest();
    const std::size_t size = static_cast<std::size_t>(std::min(Staging::kPiece, from.bytes() - at));
    const Staging::Piece piece = staging_.take(static_cast<std::int64_t>(size));
    check(cudaMemcpyAsync(piece.data, from.data + at, size, cudaMemcpyDefault, stream_of(stream)),
          "read back");
    staging_.commit(stream_of(stream));
    pending.push_back({piece, at, size});
  }
  while (!pending.empty()) finish_oldest();
}

std::unique_ptr<Stream> CudaBackend::make_stream(std::string name, Arena* scratch) {
  return std::make_unique<CudaStream>(std::move(name), scratch);
}

std::unique_ptr<Event> CudaBackend::make_event() { return std::make_unique<CudaEvent>(); }

void CudaBackend::record(Stream& stream, Event& event) {
  auto& e = static_cast<CudaEvent&>(event);
  check(cudaEventRecord(e.event, stream_of(stream)), "recording an event");
  e.recorded = true;
}

void CudaBackend::wait(Stream& stream, const Event& event) {
  check(cudaStreamWaitEvent(stream_of(stream), cuda_event(event).event, 0), "waiting for an event");
}

void CudaBackend::wait_host(const Event& event) {
  check(cudaEventSynchronize(cuda_event(event).event), "waiting for the device");
}

double CudaBackend::elapsed_seconds(const Event& from, const Event& to) {
  const CudaEvent &first = cuda_event(from), &second = cuda_event(to);
  base::check(first.recorded && second.recorded, "elapsed: both events must have been recorded");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, first.event, second.event), "the time between two events");
  return 1e-3 * static_cast<double>(milliseconds);
}

void CudaBackend::enter_thread() { use_device(device_); }

// Uses a separate stream, so that the capture includes no other work.
std::unique_ptr<DeviceGraph> CudaBackend::capture(const std::function<void(Stream&)>& issue) {
  if (!captures_) captures_ = std::make_unique<CudaStream>("captures", nullptr);
  return std::make_unique<StreamGraph>(captures_->get(), [&] { issue(*captures_); });
}

void CudaBackend::replay(Stream& stream, const DeviceGraph& graph) {
  static_cast<const StreamGraph&>(graph).launch(stream_of(stream));
}

}  // namespace trainerd::kernels::cuda
