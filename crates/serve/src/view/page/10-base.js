'use strict';
// The page of `palimpsest view`: what its other files share. Texts of a run are only ever set as text; no markup is made of data.

const at = (id) => document.getElementById(id);
const PHONE = matchMedia('(max-width: 48rem)');

// An element: its name with classes (`p.quiet`), its attributes, its children. Text becomes text.
function make(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split('.');
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (key === 'text') made.textContent = value;
    else if (key in made && typeof value !== 'string') made[key] = value;
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
const button = (text, onclick, attributes = {}) => make('button', { type: 'button', text, onclick, ...attributes });

// Numbers. A value that is not there is a dash, never a zero.
const there = (x) => x !== null && x !== undefined && !Number.isNaN(x);
const NONE = '–';
function percent(x) {
  if (!there(x)) return NONE;
  if (x === 0) return '0 %';
  const p = 100 * x;
  return `${Math.abs(p) < 0.01 ? p.toExponential(0) : p.toFixed(Math.abs(p) < 0.0995 ? 3 : Math.abs(p) < 9.95 ? 2 : 1)} %`;
}
function plain(x) {
  if (!there(x)) return NONE;
  const size = Math.abs(x);
  const text = Number.isInteger(x) ? String(x) : size < 0.0005 ? x.toExponential(1) : x.toFixed(size < 0.0995 ? 4 : size < 9.95 ? 3 : size < 99.5 ? 2 : 0);
  return text.replaceAll('-', '−');
}
function signed(x) {
  if (!there(x)) return NONE;
  return `${x > 0 ? '+' : x < 0 ? '−' : ''}${plain(Math.abs(x))}`;
}
const times = (x) => (there(x) ? `${x < 0.0995 ? x.toFixed(3) : x < 0.995 ? x.toFixed(2) : x < 9.95 ? x.toFixed(1) : Math.round(x)} ×` : NONE);
const count = (n, one, many = `${one}s`) => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
const sum = (values) => values.reduce((all, one) => all + one, 0);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const unique = (values) => [...new Set(values)];

// What a screen reader is told, beside what is seen. The same words twice are said twice.
function say(text) {
  at('spoken').textContent = '';
  requestAnimationFrame(() => { at('spoken').textContent = text; });
}
function fail(text) {
  at('error-text').textContent = text ?? '';
  at('error').hidden = !text;
}

// At most once in `wait` ms, and always once after the last call.
function later(wait, act) {
  let timer = null;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}

// A file is handed to the browser, which keeps it where it keeps others.
function download(name, kind, content) {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  make('a', { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without the right to the clipboard, as in a file: by a selection.
    const area = make('textarea.away', { readOnly: true });
    area.value = text;
    (document.querySelector('dialog[open]') ?? document.body).append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    from?.focus();
  }
  say('copied');
  if (!from) return;
  const before = from.dataset.text ??= from.textContent;
  from.textContent = 'Copied';
  setTimeout(() => { from.textContent = before; }, 1500);
}
// CSV as in RFC 4180, numbers with all their digits. What spreadsheets would take for a formula is marked as text, as in src/ground/csv.rs.
const looksLikeFormula = /^[\s\u200b-\u200d]*[=+\-@＝＋－＠]./s;
const isNumber = /^[+-]?(\d+\.?\d*|\.\d+|inf|infinity)(e[+-]?\d+)?%?( [([].*)?$/i;
const csvCell = (value) => {
  if (!there(value)) return '';
  const plain = String(value);
  const text = looksLikeFormula.test(plain) && !isNumber.test(plain) || /^[\t\r\n]/.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csv = (head, rows) => `${[head, ...rows].map((row) => row.map(csvCell).join(',')).join('\n')}\n`;

const safeName = (text) => text.replaceAll(/[^\p{L}\p{N}._-]+/gu, '-').replaceAll(/^-+|-+$/g, '').slice(0, 80) || 'view';
