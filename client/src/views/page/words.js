'use strict';
// Formats numbers and times for people, and creates elements that hold text, never markup.

const UNKNOWN = '–';
const at = (id) => document.getElementById(id);
const known = (value, format) => (value === null || value === undefined || !Number.isFinite(value) ? UNKNOWN : format(value));

function scaled(value, units) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit + 1 < units.length) { value /= 1000; unit += 1; }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.max(1, Math.abs(value)))));
  return value.toFixed(digits) + units[unit];
}
const count = (value) => known(value, (number) => scaled(number, ['', 'k', 'M', 'G', 'T', 'P']));
const bytes = (value) => known(value, (number) => scaled(number, [' B', ' kB', ' MB', ' GB', ' TB', ' PB']));
const percent = (value, digits = 0) => known(value, (number) => `${(100 * number).toFixed(digits)} %`);
const loss = (value) => known(value, (number) => (number !== 0 && Math.abs(number) < 0.01 ? number.toExponential(1) : number.toFixed(4)));
// Formats a number of unknown size and unit.
const plain = (value) => (Math.abs(value) >= 100 ? count(value) : loss(value));
const decimal = (value, digits = 1) => known(value, (number) => number.toFixed(digits));

// Formats of figures by their unit; figures of other units are formatted by `count`.
const UNITS = {
  bytes, loss, target: loss, norm: loss, share: percent, cores: decimal, gpus: decimal,
  seconds: duration, quality: (value) => percent(value, 2), density: (value) => percent(value, 2),
};
const inUnit = ({ unit, is_rate }, value) => {
  const text = (UNITS[unit] ?? count)(value);
  return is_rate && text !== UNKNOWN ? `${text}/s` : text;
};

function duration(seconds) {
  return known(seconds, (number) => {
    // Fractions of a second matter for a short run.
    if (number < 10 && !Number.isInteger(number)) return `${number.toFixed(number < 1 ? 2 : 1)} s`;
    const whole = Math.round(number);
    const two = (part) => String(part).padStart(2, '0');
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  });
}

// Creates an element with a tag, a class, and texts or other elements inside.
function make(kind, name, ...inside) {
  const element = document.createElement(kind);
  if (name) element.className = name;
  element.append(...inside);
  return element;
}

// Sets the text of an element only if it differs, so that the user's selection stays.
function write(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
}
