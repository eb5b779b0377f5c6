// The address holds what is shown, so that a link shows the same: `#view=case&row=...`. Everything else on the page follows from it.

const DEFAULTS = { view: 'overview' };
// Without a prototype: `#__proto__=1` is a key like any other.
const record = (entries = {}) => Object.assign(Object.create(null), entries);
let shown = record();              // Key to the list of its values.

const one = (key) => shown[key]?.[0] ?? DEFAULTS[key] ?? '';
const all = (key) => shown[key] ?? [];
const filters = () => record(Object.fromEntries(Object.entries(shown).filter(([key]) => key.startsWith('f.')).map(([key, values]) => [key.slice(2), values])));

function readAddress() {
  shown = record();
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) (shown[key] ??= []).push(value);
  // Filters, an order or columns alone mean the table.
  if (!shown.view && Object.keys(shown).some((key) => TABLE_KEYS(key) || key === 'col')) shown.view = ['table'];
}
function addressOf(values) {
  const search = new URLSearchParams();
  for (const [key, list] of Object.entries(values)) for (const value of list) search.append(key, value);
  // Readable where it can be: these are no trouble behind a hash.
  return `#${search.toString().replaceAll('%2F', '/').replaceAll('%3A', ':').replaceAll('%5B', '[').replaceAll('%5D', ']').replaceAll('%2C', ',')}`;
}
// The same with some keys changed: null or an empty list takes one away.
function changed(changes, from = shown) {
  const values = record(from);
  for (const [key, value] of Object.entries(changes)) {
    const list = (Array.isArray(value) ? value : [value]).filter((each) => each !== null && each !== undefined && each !== '').map(String);
    if (list.length === 0 || (list.length === 1 && list[0] === DEFAULTS[key])) delete values[key];
    else values[key] = list;
  }
  return values;
}
// Goes there. What is only another look at the same is no step of the history.
function go(changes, step = false) {
  const values = changed(changes);
  const address = addressOf(values);
  const before = one('view');
  if (address === addressOf(shown)) return;
  const base = location.href.split('#')[0];
  if (step) history.pushState(null, '', base + address);
  else history.replaceState(null, '', base + address);
  shown = values;
  render(before !== one('view'));
}
const linkTo = (changes, from) => addressOf(changed(changes, from));
// What belongs to the table stays in the address of a case, so that the way back leads to where one was.
const TABLE_KEYS = (key) => key.startsWith('f.') || ['q', 'sort', 'judge'].includes(key);
const tableOnly = () => Object.fromEntries(Object.entries(shown).filter(([key]) => TABLE_KEYS(key)));
const tableAddress = () => addressOf({ view: ['table'], ...tableOnly(), ...(shown.col ? { col: shown.col } : {}) });
