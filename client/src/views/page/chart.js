// Draws charts as SVG in the size of their element.

const SVG = 'http://www.w3.org/2000/svg';
const EDGE = { left: 52, right: 10, top: 20, bottom: 34 };

function drawn(kind, attributes, text) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns about `wanted` round numbers between two numbers.
function steps(low, high, wanted) {
  const rough = (high - low) / wanted;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) ?? rough;
  const found = [];
  // Two numbers that differ only by rounding have no round numbers between them.
  if (!(step > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

// Returns the ticks of a log scale as logarithms: powers of ten with multiples between them, or fewer where there is less
// room.
function logSteps(low, high, wanted) {
  const inside = (value) => value >= low - 1e-9 && value <= high + 1e-9;
  const powers = (every, times) => {
    const found = [];
    for (let power = Math.floor(low / every) * every; power <= high; power += every) {
      found.push(...times.map((time) => power + Math.log10(time)).filter(inside));
    }
    return found;
  };
  const choices = [powers(1, [1, 2, 5]), powers(1, [1, 3]), ...[1, 2, 3, 6, 12, 100].map((every) => powers(every, [1]))];
  return choices.find((found) => found.length <= 2 * wanted) ?? [low];
}

// Returns true if a log scale is possible: all values must be positive.
const fitsLog = (series) => series.every((one) => one.points.every(([, y]) => y > 0));

// Draws a chart: series of points, whose names are their CSS classes, vertical lines (`ticks`) for events, formats (`x`, `y`)
// and titles of the axes, and the highest possible value (`most`). Passes the values under the pointer to `tell`.
function chart(svg, { series, ticks = [], log = false, x, y, titles: [below, beside], from0 = false, most = Infinity, tell }) {
  const box = svg.getBoundingClientRect();
  const [width, height] = [Math.max(120, box.width), Math.max(80, box.height)];
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const shown = series.map((one) => ({ ...one, points: one.points.filter((point) => point.every(Number.isFinite)) }));
  const all = shown.flatMap((one) => one.points);
  if (all.length === 0) return;
  const asLog = log && fitsLog(shown);
  const scale = (value) => (asLog ? Math.log10(value) : value);
  const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  let [left, right] = range(all.map((point) => point[0]));
  let [low, high] = range(all.map((point) => scale(point[1])));
  if (from0) low = Math.min(0, low);
  // A single value is drawn in the middle of the axis.
  const around = (value) => Math.max(Math.abs(value) / 10, 1e-9);
  if (left === right) [left, right] = [left - around(left), right + around(right)];
  if (from0 && high === 0) high = 1;
  if (low === high) [low, high] = [low - around(low), Math.min(most, high + around(high))];
  const across = (value) => EDGE.left + ((value - left) / (right - left)) * (width - EDGE.left - EDGE.right);
  const up = (value) => height - EDGE.bottom - ((scale(value) - low) / (high - low)) * (height - EDGE.top - EDGE.bottom);

  for (const value of (asLog ? logSteps : steps)(low, high, Math.max(2, height / 55))) {
    const real = asLog ? 10 ** value : value;
    svg.append(drawn('line', { class: 'axis', x1: EDGE.left, x2: width - EDGE.right, y1: up(real), y2: up(real) }));
    svg.append(drawn('text', { x: EDGE.left - 6, y: up(real) + 4, 'text-anchor': 'end' }, y(real)));
  }
  let written = '';
  for (const value of steps(left, right, Math.max(2, width / 130))) {
    if (x(value) === written) continue;
    written = x(value);
    const anchor = across(value) > width - 40 ? 'end' : 'middle';
    svg.append(drawn('text', { x: across(value), y: height - 19, 'text-anchor': anchor }, x(value)));
  }
  svg.append(drawn('text', { x: (EDGE.left + width - EDGE.right) / 2, y: height - 4, 'text-anchor': 'middle' }, below));
  svg.append(drawn('text', { x: 2, y: 11 }, beside));
  for (const tick of ticks.filter((one) => one.x >= left && one.x <= right)) {
    const line = drawn('line', { class: `tick ${tick.kind}`, x1: across(tick.x), x2: across(tick.x), y1: EDGE.top, y2: height - EDGE.bottom });
    line.append(drawn('title', {}, tick.text));
    svg.append(line);
  }
  for (const one of shown) {
    const path = one.points.map(([px, py], index) => `${index ? 'L' : 'M'}${across(px).toFixed(1)} ${up(py).toFixed(1)}`);
    svg.append(drawn('path', { class: `curve ${one.name}`, d: path.join('') }));
    if (one.dots) {
      const few = one.points.length <= 80 ? one.points : one.points.slice(-1);
      for (const [px, py] of few) svg.append(drawn('circle', { cx: across(px), cy: up(py), r: 2.5 }));
    }
  }
  svg.onpointerleave = () => tell('');
  svg.onpointermove = (event) => {
    const inside = (event.clientX - svg.getBoundingClientRect().left) * (width / Math.max(1, box.width));
    const value = left + ((inside - EDGE.left) / (width - EDGE.left - EDGE.right)) * (right - left);
    const nearest = (points) => points.reduce((best, point) => (Math.abs(point[0] - value) < Math.abs(best[0] - value) ? point : best));
    const found = shown.filter((one) => one.points.length > 0).map((one) => nearest(one.points));
    tell(`${x(found[0][0])}: ${found.map((point) => y(point[1])).join(', ')}`);
  };
}
