#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/metrics/families.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Readings of the ranks' GPUs, and what was found of them. But for the rank's the labels of a reading are
/// those of NVIDIA's DCGM exporter, whose metrics they can be joined with.
class DeviceMetrics {
 public:
  explicit DeviceMetrics(prometheus::Registry& r)
      : memory_used_(gauge(r, "trainerd_device_memory_used_bytes",
                           "Memory of the rank's GPU in use, by all processes.")),
        memory_(gauge(r, "trainerd_device_memory_total_bytes", "Memory of the rank's GPU.")),
        power_(gauge(r, "trainerd_device_power_watts", "Power drawn by the rank's GPU.")),
        energy_(counter(r, "trainerd_device_energy_joules_total",
                        "Energy taken by the rank's GPU since its driver was loaded.")),
        clock_(gauge(r, "trainerd_device_sm_clock_hertz", "Clock of the multiprocessors of the rank's GPU.")),
        temperature_(gauge(r, "trainerd_device_temperature_celsius", "Temperature of the rank's GPU.")),
        ecc_(gauge(r, "trainerd_device_ecc_errors",
                   "Uncorrected memory errors of the rank's GPU since its driver was loaded.")),
        nvlink_(gauge(r, "trainerd_device_nvlink_errors",
                      "Replays, recoveries and failed checksums of the NVLinks of the rank's GPU, which the "
                      "hardware corrected.")),
        throttled_(gauge(r, "trainerd_device_throttled",
                         "Whether the clocks of the rank's GPU are lowered, by reason: thermal, power (power "
                         "brake or hardware), power_cap (its power limit).")),
        findings_(counter(r, "trainerd_device_findings_total",
                          "What was found of the ranks' GPUs, by kind: ecc, xid, lost, nvlink, thermal, "
                          "power, note (an XID that is not of the device).")) {}
  /// The kinds that may come count from 0.
  void begin() {
    for (const char* kind : {"ecc", "xid", "lost", "nvlink", "thermal", "power", "note"})
      findings_.Add({{"kind", kind}});
  }
  void on_finding(const DeviceFindingRecord& record) { findings_.Add({{"kind", record.kind}}).Increment(); }
  void on_reading(const DeviceRecord& record) {
    const kernels::DeviceReading& d = record.reading;
    if (d.lost) return;
    const prometheus::Labels labels{{"rank", std::to_string(record.rank)},
                                    {"pci_bus_id", d.pci_bus_id},
                                    {"UUID", d.uuid},
                                    {"modelName", d.name}};
    const auto set = [&](prometheus::Family<prometheus::Gauge>& family, const std::optional<double>& value) {
      if (value) family.Add(labels).Set(*value);
      else family.Remove(&family.Add(labels));  // what is not known any more is absent
    };
    set(memory_used_, d.memory_used_bytes);
    set(memory_, d.memory_total_bytes);
    set(power_, d.power_watts);
    if (d.energy_joules) raise_to(energy_.Add(labels), *d.energy_joules);
    set(clock_, d.sm_clock_hertz);
    set(temperature_, d.temperature_celsius);
    set(ecc_, d.ecc_errors);
    std::optional<double> nvlink;
    for (const auto& [link, errors] : d.nvlink_errors) nvlink = nvlink.value_or(0) + errors;
    set(nvlink_, nvlink);
    if (!d.throttle_reasons) return;
    using namespace kernels::throttle;
    const auto show = [&](const char* reason, std::uint64_t bits) {
      prometheus::Labels with = labels;
      with["reason"] = reason;
      throttled_.Add(with).Set((*d.throttle_reasons & bits) != 0 ? 1 : 0);
    };
    show("thermal", kThermal);
    show("power", (*d.throttle_reasons & kThermal) != 0 ? kPowerBrake : kPowerBrake | kHardware);
    show("power_cap", kPowerCap);
  }

 private:
  prometheus::Family<prometheus::Gauge>&memory_used_, &memory_, &power_;
  prometheus::Family<prometheus::Counter>& energy_;
  prometheus::Family<prometheus::Gauge>&clock_, &temperature_, &ecc_, &nvlink_, &throttled_;
  prometheus::Family<prometheus::Counter>& findings_;
};

}  // namespace trainerd::io
