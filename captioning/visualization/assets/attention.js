/* Numerical functions of attention maps; a map is an array of rows. They equal those of the Python package. */
import { COLORMAPS, DARK_SPOTLIGHT } from "./constants.js";

const UPSAMPLE = 16; // factor of the bicubic upsampling of a map; the browser interpolates the rest
const REFERENCE_SIZE = 16; // cells per side of a map
const MAX_OUTLINED_AREA = 0.4; // the outline of an almost uniform map follows noise

export const lerp = (start, end, fraction) => start + (end - start) * fraction;
export const lerpMaps = (start, end, fraction) =>
  end.map((row, y) => row.map((value, x) => lerp(start[y][x], value, fraction)));

/* Scale a map to a maximum of 1. */
export function normalize(map) {
  const maximum = Math.max(1e-9, ...map.flat());
  return map.map((row) => row.map((value) => value / maximum));
}

/* Smooth a map like smooth_maps() of the Python package. */
const smoothRow = (row) => {
  const weight = 0.25 * Math.min(1, row.length / REFERENCE_SIZE) ** 2;
  return row.map((value, index) =>
    (1 - 2 * weight) * value + weight * ((row[index - 1] ?? value) + (row[index + 1] ?? value)));
};
export const smooth = (map) => transpose(transpose(map.map(smoothRow)).map(smoothRow));

/* Center of the cell with the highest value, in fractions of the map. */
export function peak(map) {
  const values = map.flat();
  const index = values.indexOf(Math.max(...values));
  const columns = map[0].length;
  return { x: ((index % columns) + 0.5) / columns, y: (Math.floor(index / columns) + 0.5) / map.length };
}

/* Keys' cubic convolution kernel (a = -1/2), the same as Pillow's BICUBIC, so that pages and PNG files agree. */
function cubicKernel(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

function upsampleRows(rows) {
  const numRows = rows.length;
  return Array.from({ length: numRows * UPSAMPLE }, (_, target) => {
    const position = (target + 0.5) / UPSAMPLE - 0.5;
    const row = new Float32Array(rows[0].length);
    let sum = 0;
    for (let source = Math.max(0, Math.ceil(position - 2)); source <= Math.min(numRows - 1, position + 2); source++) {
      const weight = cubicKernel(position - source);
      sum += weight;
      rows[source].forEach((value, index) => (row[index] += weight * value));
    }
    return row.map((value) => value / sum);
  });
}

const transpose = (rows) => Array.from(rows[0], (_, column) => rows.map((row) => row[column]));
export const upsample = (map) => transpose(upsampleRows(transpose(upsampleRows(map))));

/* The smallest set of cells that holds half of the attention: its area as a fraction of the map, and a value between
   those of its cells and those of the others. */
export function halfAttention(map) {
  const values = map.flat().sort((a, b) => b - a);
  const half = values.reduce((sum, value) => sum + value, 0) / 2 - 1e-9;
  let sum = 0;
  const last = values.findIndex((value) => (sum += value) >= half);
  return { area: (last + 1) / values.length, level: (values[last] + values[Math.min(last + 1, values.length - 1)]) / 2 };
}

/* Line segments [x1, y1, x2, y2] around that set, in fractions of the map; none if it covers most of the map. */
export function halfAttentionOutline(map, upsampled) {
  const { area, level } = halfAttention(map);
  return area > MAX_OUTLINED_AREA ? [] : trace(pad(upsampled), level);
}

function pad(rows) {
  const empty = new Array(rows[0].length + 2).fill(0);
  return [empty, ...rows.map((row) => [0, ...row, 0]), empty]; // a region at the border gets a closed outline
}

/* Marching triangles: in each triangle of neighboring samples, a line separates values above and below the level. */
function trace(values, level) {
  const [rows, columns] = [values.length, values[0].length];
  const clip = (position) => Math.min(Math.max(position, 0), 1);
  const sample = (y, x) => ({ x: clip((x - 0.5) / (columns - 2)), y: clip((y - 0.5) / (rows - 2)), value: values[y][x] });
  const segments = [];
  const addTriangle = (...corners) => {
    const isAbove = corners.map(({ value }) => value >= level);
    const odd = isAbove.findIndex((above) => isAbove.filter((other) => other === above).length === 1);
    if (odd < 0) return;
    const start = corners[odd];
    segments.push([1, 2].flatMap((offset) => {
      const end = corners[(odd + offset) % 3];
      const fraction = (level - start.value) / (end.value - start.value);
      return [lerp(start.x, end.x, fraction), lerp(start.y, end.y, fraction)];
    }));
  };
  for (let y = 0; y + 1 < rows; y++) {
    for (let x = 0; x + 1 < columns; x++) {
      const corners = [sample(y, x), sample(y, x + 1), sample(y + 1, x + 1), sample(y + 1, x)];
      addTriangle(corners[0], corners[1], corners[2]);
      addTriangle(corners[0], corners[2], corners[3]);
    }
  }
  return segments;
}

/* Gradient stops [red, green, blue, alpha] from low to high attention. */
export function colormapStops(colormap, opacity, isDark) {
  const stops = isDark && colormap === "spotlight" ? DARK_SPOTLIGHT : COLORMAPS[colormap];
  return stops.map(([red, green, blue, alpha]) => [red, green, blue, alpha * opacity]);
}

/* [red, green, blue, alpha] of a level in [0, 1], interpolated linearly between the gradient stops. */
export function colorAt(stops, level) {
  const position = Math.min(Math.max(level, 0), 1) * (stops.length - 1);
  const left = Math.min(Math.floor(position), stops.length - 2);
  return stops[left].map((value, channel) => lerp(value, stops[left + 1][channel], position - left));
}
