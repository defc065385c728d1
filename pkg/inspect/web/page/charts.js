// Charts, drawn as SVG. A rate is of the time between two readings, so it is drawn as a step of that
// width: one reading after a long pause is a wide step, not a peak.

const chartHeight = 150;
const chartLeft = 48;
const chartBottom = 22;

// steps returns the steps of readings with their values, in milliseconds; the first readings may lack.
function steps(readings, values) {
  return readings.map((reading, i) => {
    const to = Date.parse(reading.time);
    return { from: to - 1000 * reading.seconds, to, value: (values && values[i]) || 0 };
  });
}

// top returns a round number that is not less than the largest value.
function roundUp(value) {
  if (value <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((n) => n * unit).find((n) => n >= value);
}

const short = (n) => n >= 1e6 ? `${+(n / 1e6).toFixed(2)}M` : n >= 1e3 ? `${+(n / 1e3).toFixed(2)}k` : `${+n.toFixed(2)}`;

// path draws steps; y returns the height of a value and x the place of a time.
function path(list, x, y, closed) {
  let d = closed ? `M${x(list[0].from)},${y(0)}` : '';
  for (const s of list) d += `${d ? 'L' : 'M'}${x(s.from)},${y(s.value)}H${x(s.to)}`;
  return closed ? `${d}V${y(0)}Z` : d;
}

// chart draws steps of the last time, in milliseconds, into a place.
function chart(place, color, what, list, span) {
  if (!list.length) {
    put(place, quiet('A rate takes two readings.'));
    return;
  }
  const width = Math.max(place.clientWidth, 200), bottom = chartHeight - chartBottom;
  const end = list.at(-1).to;
  const begin = Math.max(end - span, Math.min(list[0].from, end - 60000));
  list = list.filter((s) => s.to > begin).map((s) => ({ ...s, from: Math.max(s.from, begin) }));
  const most = Math.max(...list.map((s) => s.value)), top = roundUp(most);
  const x = (time) => +(chartLeft + (width - chartLeft - 1) * (time - begin) / (end - begin)).toFixed(1);
  const y = (value) => +(bottom - (bottom - 8) * value / top).toFixed(1);
  const caption = element('figcaption', {}, `now ${rate(list.at(-1).value)}, at most ${rate(most)}`);
  const cross = drawing('line', { class: 'cross', y1: 8, y2: bottom, visibility: 'hidden' });
  const svg = drawing('svg', {
    class: color, width, height: chartHeight, role: 'img',
    'aria-label': `${what}: now ${rate(list.at(-1).value)}, at most ${rate(most)} since ${clock(begin)}`,
  }, [0, top / 2, top].map((value) => [
    drawing('line', { class: 'grid', x1: chartLeft, x2: width, y1: y(value), y2: y(value) }),
    drawing('text', { class: 'axis', x: chartLeft - 6, y: y(value) + 4, 'text-anchor': 'end' }, short(value)),
  ]),
  drawing('text', { class: 'axis', x: chartLeft, y: chartHeight - 4 }, clock(begin)),
  drawing('text', { class: 'axis', x: width, y: chartHeight - 4, 'text-anchor': 'end' }, clock(end)),
  drawing('path', { class: 'area', d: path(list, x, y, true) }),
  drawing('path', { class: 'edge', d: path(list, x, y, false) }), cross);
  svg.addEventListener('pointermove', (event) => {
    const time = begin + (event.clientX - svg.getBoundingClientRect().left - chartLeft) / (width - chartLeft - 1) * (end - begin);
    const step = list.find((s) => time >= s.from && time <= s.to);
    if (!step) return;
    fill(cross, { x1: x(time), x2: x(time), visibility: 'visible' }, []);
    caption.textContent = `${clock(step.from)} to ${clock(step.to)}: ${rate(step.value)}`;
  });
  put(place, element('figure', {}, svg, caption));
}

// spark draws a row's values without axes.
function spark(values) {
  const width = 100, height = 22;
  if (!values?.some((value) => value > 0)) return drawing('svg', { width, height, 'aria-hidden': 'true' });
  const top = Math.max(...values);
  const list = values.map((value, i) => ({ from: i, to: i + 1, value }));
  const x = (i) => +(width * i / values.length).toFixed(1), y = (value) => +(height - 2 - (height - 4) * value / top).toFixed(1);
  return drawing('svg', { class: 'blue', width, height, 'aria-hidden': 'true' },
    drawing('path', { class: 'area', d: path(list, x, y, true) }), drawing('path', { class: 'edge', d: path(list, x, y, false) }));
}

// bar draws parts of a whole, each [class, part], and a mark; the text beside it has the numbers.
function bar(parts, mark) {
  let from = 0;
  const rects = parts.map(([kind, part]) => {
    const rect = drawing('rect', { class: kind, x: `${100 * from}%`, width: `${100 * part}%`, height: 10 });
    from += part;
    return rect;
  });
  return drawing('svg', { class: 'bar', width: '100%', height: 14, 'aria-hidden': 'true' },
    drawing('rect', { class: 'empty', width: '100%', height: 10 }), rects,
    mark === undefined ? [] : drawing('line', { class: 'mark', x1: `${100 * mark}%`, x2: `${100 * mark}%`, y1: -2, y2: 13 }));
}

const swatch = (kind) => drawing('svg', { class: 'bar', width: 10, height: 10, 'aria-hidden': 'true' }, drawing('rect', { class: kind, width: 10, height: 10 }));
