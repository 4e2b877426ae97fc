#pragma once

#include <string>

namespace trainerd::io {

/// Common script of pages with interactive charts: `chart(figure, spec)` draws a line chart in the design of
/// chart.h with zoom by dragging, values at the pointer, and smoothing. It loads nothing. It defines the
/// object `T`:
///   T.el(tag, attributes, parent, text)   makes an element
///   T.format(kind, value)                 "number", "real", "percent", "seconds", "bytes", "integer"
///   T.charts                              {smoothing: 0 to 0.99, zoom: null or [x0, x1], redraw()}
///   T.chart(figure, spec)                 spec: {title, kind, scale, lines, marks, xkind}
///                                         scale: "fitted", "zero" or "log"
///                                         line: {label, color: 0 to 9, dashed, dots, hidden, points}
///                                         points: [[x, low, middle, high], ...], ascending x
///                                         mark: {x, name}
///                                         Returns an object with `update(spec)`.
std::string page_script();

}  // namespace trainerd::io
