#pragma once

#include <vector>

#include "parallel/schedule/timeline.h"

namespace trainerd::test {

struct PublishedBubble {
  parallel::ScheduleShape shape;
  parallel::ActionCosts costs;  ///< milliseconds per chunk
  double bubble;
};

/// Table 5 of Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024, arXiv 2401.10241): bubble rates from
/// profiled times (milliseconds: forward, input gradient, weight gradient, message), measured with each
/// model's fewest microbatches. Interleaved has one layer per chunk.
inline std::vector<PublishedBubble> zero_bubble_table() {
  using parallel::ScheduleKind;
  struct Row {
    int stages, microbatches, chunks;
    parallel::ActionCosts costs;
    double one_f_one_b, interleaved, zb_h1;
  };
  const parallel::ActionCosts small{18.522, 18.086, 9.337, 0.601}, medium{29.718, 29.444, 19.927, 0.527},
      large{11.347, 11.248, 8.132, 0.377}, largest{10.419, 10.207, 7.715, 0.408};
  const std::vector<Row> rows = {
      {8, 24, 3, small, 0.2431, 0.1055, 0.1585},     {8, 32, 3, small, 0.1985, 0.0818, 0.1242},
      {8, 64, 3, small, 0.1240, 0.0443, 0.0674},     {8, 24, 4, medium, 0.2347, 0.0808, 0.1323},
      {8, 32, 4, medium, 0.1898, 0.0628, 0.1045},    {8, 64, 4, medium, 0.1091, 0.0320, 0.0554},
      {16, 48, 3, large, 0.2552, 0.1104, 0.1397},    {16, 64, 3, large, 0.2082, 0.0852, 0.1088},
      {16, 128, 3, large, 0.1251, 0.0445, 0.0576},   {32, 96, 2, largest, 0.2646, 0.1493, 0.1421},
      {32, 128, 2, largest, 0.2168, 0.1164, 0.1106}, {32, 256, 2, largest, 0.1352, 0.0624, 0.0594},
  };
  std::vector<PublishedBubble> table;
  for (const Row& row : rows) {
    const auto add = [&](ScheduleKind kind, int chunks, double published) {
      const double part = chunks;
      table.push_back({{kind, row.stages, chunks, row.microbatches, parallel::Pass::train},
                       {row.costs.forward / part, row.costs.backward_input / part,
                        row.costs.backward_weight / part, row.costs.transfer},
                       published});
    };
    add(ScheduleKind::one_f_one_b, 1, row.one_f_one_b);
    add(ScheduleKind::zb_h1, 1, row.zb_h1);
    add(ScheduleKind::interleaved, row.chunks, row.interleaved);
  }
  return table;
}

}  // namespace trainerd::test
