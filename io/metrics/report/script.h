#pragma once

#include <string>

namespace trainerd::io {

/// The pages' own script, for what is more than a picture: `chart(figure, spec)` draws a line chart in the
/// design of chart.h that is zoomed by dragging, read at the pointer and smoothed. It fetches nothing. What
/// it defines is in the object `T`:
///   T.el(tag, attributes, parent, text)      makes an element
///   T.format(kind, value)                    "number", "real", "percent", "seconds", "bytes", "integer"
///   T.charts                                 {smoothing: 0 to 0.99, zoom: null or [x0, x1], redraw()}
///   T.chart(figure, spec)                    spec: {title, kind, scale: "fitted", "zero" or "log", lines,
///   marks,
///                                            xkind}; of lines {label, color: 0 to 9, dashed, dots, hidden,
///                                            points: [[x, low, middle, high], ...], ascending x}; of marks
///                                            {x, name}. Returns an object with `update(spec)`.
std::string page_script();

}  // namespace trainerd::io
