#pragma once

// A random program of collectives over several groups. Every rank derives it from a seed, runs its part and
// checks every result. Ranks are threads or processes.

#include <algorithm>
#include <map>
#include <random>

#include "tests/parallel/comm_support.h"

namespace trainerd::test {

struct ProgramGroup {
  std::string name;
  std::vector<std::int64_t> ranks;
};

/// All ranks; the even and the odd ranks; pairs in descending order. Every rank is in three groups.
inline std::vector<ProgramGroup> program_groups(std::int64_t ranks) {
  std::vector<ProgramGroup> groups{{"all", all_ranks(ranks)}};
  std::vector<std::int64_t> even, odd;
  for (std::int64_t r = 0; r < ranks; ++r) (r % 2 == 0 ? even : odd).push_back(r);
  groups.push_back({"half", even});
  if (!odd.empty()) groups.push_back({"half", odd});
  for (std::int64_t r = 0; r + 1 < ranks; r += 2) groups.push_back({"pair", {r + 1, r}});
  return groups;
}

class ProgramRank {
 public:
  using Communicators = std::vector<std::unique_ptr<parallel::Communicator>>;  // by group; null: not a member

  ProgramRank(std::int64_t rank, const std::vector<ProgramGroup>& groups, const Communicators& communicators,
              RankMachine& machine)
      : rank_(rank),
        groups_(groups),
        communicators_(communicators),
        machine_(machine),
        stream_(*machine.stream) {}

  /// Throws std::runtime_error for a wrong result, and exceptions of operations.
  void run(std::uint64_t seed, int steps) {
    std::mt19937_64 random(seed);
    for (int step = 0; step < steps; ++step) {
      const std::size_t g = random() % groups_.size();
      const int op = static_cast<int>(random() % 7);
      const DType dtype =
          std::array{DType::f32, DType::bf16, DType::f64, DType::i32, DType::f16}[random() % 5];
      const auto sizes = std::array<std::int64_t, 7>{0, 1, 3, 64, 777, 5000, 20000};
      const std::int64_t part = sizes[random() % sizes.size()];
      const bool background = random() % 3 == 0;
      const std::uint64_t root = random(), data = random();
      if (communicators_[g] == nullptr) continue;
      options_ = {.label = "step",
                  .progress = background ? parallel::Progress::background : parallel::Progress::caller};
      one(g, op, dtype, part, root, data);
    }
  }

 private:
  void one(std::size_t g, int op, DType dtype, std::int64_t part, std::uint64_t root_bits,
           std::uint64_t data) {
    parallel::Communicator& comm = *communicators_[g];
    const std::vector<std::int64_t>& ranks = groups_[g].ranks;
    const auto n = static_cast<std::int64_t>(ranks.size());
    const std::int64_t root = static_cast<std::int64_t>(root_bits % static_cast<std::uint64_t>(n)),
                       me = comm.rank();
    const auto values = [&](std::int64_t numel) {
      return HostTensor(dtype, values_of(dtype, data, rank_, numel));
    };
    const auto same = [&](const HostTensor& x, const auto& expected) {
      for (std::int64_t i = 0; i < (*x).numel(); ++i)
        expect(get(*x, i) == expected(i),
               groups_[g].name + " operation " + std::to_string(op) + " element " + std::to_string(i));
    };
    switch (op) {
      case 0: {
        const HostTensor x = values(part);
        comm.all_reduce(stream_, *x, parallel::ReduceOp::sum, options_)->wait(stream_), machine_.sync();
        return same(x, [&](std::int64_t i) { return sum_of(dtype, data, ranks, i); });
      }
      case 1: {
        const HostTensor x = values(part);
        comm.all_reduce(stream_, *x, parallel::ReduceOp::max, options_)->wait(stream_), machine_.sync();
        return same(x, [&](std::int64_t i) { return max_of(dtype, data, ranks, i); });
      }
      case 2: {
        const HostTensor x = values(part), out(dtype, part * n);
        comm.all_gather(stream_, *x, *out, options_)->wait(stream_), machine_.sync();
        return same(out, [&](std::int64_t i) {
          return value_of(dtype, data, ranks[static_cast<std::size_t>(i / part)], i % part);
        });
      }
      case 3: {
        const HostTensor x = values(part * n), out(dtype, part);
        comm.reduce_scatter(stream_, *x, *out, options_)->wait(stream_), machine_.sync();
        return same(out, [&](std::int64_t i) { return sum_of(dtype, data, ranks, me * part + i); });
      }
      case 4: {
        const HostTensor x = values(part * n), out(dtype, part * n);
        comm.all_to_all(stream_, *x, *out, options_)->wait(stream_), machine_.sync();
        return same(out, [&](std::int64_t i) {
          return value_of(dtype, data, ranks[static_cast<std::size_t>(i / part)], me * part + i % part);
        });
      }
      case 5: {
        const HostTensor x = values(part);
        comm.broadcast(stream_, *x, root, options_)->wait(stream_), machine_.sync();
        return same(x, [&](std::int64_t i) {
          return value_of(dtype, data, ranks[static_cast<std::size_t>(root)], i);
        });
      }
      default: {  // send to the next rank, receive from the previous one
        if (n == 1) return;
        const HostTensor x = values(part), out(dtype, part);
        const std::int64_t from = (me + n - 1) % n;
        const parallel::Transfer send{(me + 1) % n, *x}, receive{from, *out};
        comm.exchange(stream_, {&send, 1}, {&receive, 1}, options_)->wait(stream_), machine_.sync();
        return same(out, [&](std::int64_t i) {
          return value_of(dtype, data, ranks[static_cast<std::size_t>(from)], i);
        });
      }
    }
  }

  std::int64_t rank_;
  const std::vector<ProgramGroup>& groups_;
  const Communicators& communicators_;
  RankMachine& machine_;
  kernels::Stream& stream_;
  parallel::CommOptions options_;
};

/// This rank's part of the program; `make(machine, group)` makes its communicator of a group.
template <class Make>
void run_program(std::int64_t rank, const std::vector<ProgramGroup>& groups, std::uint64_t seed, int steps,
                 const Make& make) {
  RankMachine machine;
  ProgramRank::Communicators comms;
  for (const ProgramGroup& group : groups) {
    const bool member = std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end();
    comms.push_back(member ? make(machine, group) : nullptr);
  }
  ProgramRank(rank, groups, comms, machine).run(seed, steps);
}

}  // namespace trainerd::test
