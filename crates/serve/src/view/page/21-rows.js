// The rows of the table in the page's memory, column by column: filter, count and sort. 10,000 rows take a few milliseconds.

// Ranges that a filter on numbers offers. They are the same for all folders, so that an address means the same tomorrow.
const RANGES = {
  rank: [['1', 1, 1], ['2 to 3', 1.01, 3.99], ['4 to 10', 4, 10], ['beyond 10', 10.01, Infinity]],
  nats: [['below −1', -Infinity, -1], ['−1 to −0.1', -1, -0.1], ['−0.1 to 0.1', -0.1, 0.1], ['0.1 to 1', 0.1, 1], ['above 1', 1, Infinity]],
  share: [['below 0.1 %', -Infinity, 0.001], ['0.1 to 1 %', 0.001, 0.01], ['1 to 10 %', 0.01, 0.1], ['above 10 %', 0.1, Infinity]],
  tokens: [['below 100', -Infinity, 99.9], ['100 to 1,000', 100, 1000], ['1,000 to 10,000', 1000, 10_000], ['beyond 10,000', 10_000, Infinity]],
  number: [['0', 0, 0], ['up to 1', 1e-9, 1], ['2 to 3', 1.01, 3], ['beyond 3', 3.01, Infinity]],
};
const EMPTY = '(none)';              // The name of a missing value, in filters and in the address.

const store = { count: 0, columns: [], byKey: new Map(), places: new Map(), order: new Int32Array(0), counts: new Map(), hits: null, took: 0 };

// A column of the reply: names and codes, or numbers with the ranges that they lie in, or texts.
function columnOf({ name, label, about, kind, unit, values, codes }) {
  const column = { key: name, label, about: about?.replaceAll('`', ''), kind, unit };
  if (kind === 'number') {
    const ranges = RANGES[unit] ?? RANGES.number;
    column.numbers = Float64Array.from(values, (value) => (there(value) ? value : NaN));
    column.names = [...ranges.map(([range]) => range), EMPTY];
    column.codes = Uint8Array.from(column.numbers, (x) => {
      const found = ranges.findIndex(([, low, high]) => x >= low && x <= high);
      return found < 0 ? ranges.length : found;
    });
  } else if (kind === 'category') {
    const missing = codes.includes(-1);
    column.names = missing ? [...values, EMPTY] : values;
    column.codes = Int32Array.from(codes, (code) => (code < 0 ? values.length : code));
  } else {
    column.texts = values.map((value) => value ?? '');
    // A case is a name, too; what judges say is not.
    if (name === 'case') {
      const places = new Map();
      column.names = [];
      column.codes = Int32Array.from(column.texts, (text) => {
        if (!places.has(text)) { places.set(text, column.names.length); column.names.push(text); }
        return places.get(text);
      });
    }
  }
  return column;
}
function takeTable(table) {
  store.count = table.n;
  store.columns = table.columns.map(columnOf);
  store.byKey = new Map(store.columns.map((column) => [column.key, column]));
  store.ranked = table.ranked;
  store.places = new Map();
  for (let row = 0; row < store.count; row += 1) store.places.set(JSON.stringify(nameOf(row)), row);
}
// What a row is called in the address, where numbers would not outlast the folder.
const NAMES = ['run', 'case', 'probe', 'condition'];
function nameOf(row) {
  return NAMES.map((key) => textOf(key, row));
}
function textOf(key, row) {
  const column = store.byKey.get(key);
  if (!column) return '';
  const value = valueOf(column, row);
  return value === EMPTY && column.kind === 'category' && column.codes[row] === column.names.length - 1 ? '' : String(value);
}
// The row of these names; an address by hand may leave some out.
function rowOf(names) {
  const found = store.places.get(JSON.stringify(names));
  if (found !== undefined || !names.some((name) => name !== '')) return found;
  for (let row = 0; row < store.count; row += 1) {
    if (nameOf(row).every((name, i) => names[i] === '' || names[i] === name)) return row;
  }
  return undefined;
}
const addressNames = (row) => Object.fromEntries(nameOf(row).map((name, i) => [NAMES[i], name]));
const valueOf = (column, row) => (column.numbers ? column.numbers[row] : column.texts ? column.texts[row] : column.names[column.codes[row]]);

// Which rows pass all filters and the search; and of each filter's values how many rows have it that pass all the others.
function sift() {
  const since = performance.now();
  const active = [];
  for (const [key, wanted] of Object.entries(filters())) {
    const column = store.byKey.get(key);
    if (!column?.codes) continue;
    const pass = new Uint8Array(column.names.length);
    column.names.forEach((name, code) => { pass[code] = wanted.includes(name) ? 1 : 0; });
    active.push({ column, pass });
  }
  const countable = store.columns.filter((column) => column.codes);
  const counts = new Map(countable.map((column) => [column.key, new Int32Array(column.names.length)]));
  const order = new Int32Array(store.count);
  let kept = 0;
  for (let row = 0; row < store.count; row += 1) {
    if (store.hits && !store.hits[row]) continue;
    let failed = 0;
    let which = null;
    for (const { column, pass } of active) {
      if (!pass[column.codes[row]]) { failed += 1; which = column; if (failed > 1) break; }
    }
    if (failed === 0) {
      order[kept] = row;
      kept += 1;
      for (const column of countable) counts.get(column.key)[column.codes[row]] += 1;
    } else if (failed === 1) counts.get(which.key)[which.codes[row]] += 1;
  }
  store.counts = counts;
  store.order = sorted(order.subarray(0, kept));
  store.took = performance.now() - since;
}

// By the column that the address names, first by its values, then as the files have them; missing values last, whichever way.
function sorted(order) {
  const named = one('sort');
  const down = named.startsWith('-');
  const column = store.byKey.get(down ? named.slice(1) : named);
  if (!column) return order;
  let key;
  if (column.numbers) key = column.numbers;
  else {
    const collator = new Intl.Collator('en', { numeric: true });
    if (!column.codes) return order.slice().sort((a, b) => (down ? -1 : 1) * collator.compare(column.texts[a], column.texts[b]) || a - b);
    const ranked = column.names.map((name, code) => [name, code]).sort(([a], [b]) => collator.compare(a, b));
    const ranks = new Float64Array(column.names.length);
    ranked.forEach(([name, code], rank) => { ranks[code] = name === EMPTY ? NaN : rank; });
    key = Float64Array.from(column.codes, (code) => ranks[code]);
  }
  const way = down ? -1 : 1;
  return order.slice().sort((a, b) => {
    const [x, y] = [key[a], key[b]];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
    return way * (x - y) || a - b;
  });
}

// The search is the server's, which has the texts; what it found is kept until something else is asked or the folder grows.
let searching = 0;
async function search(text) {
  const mine = ++searching;
  if (!text) { store.hits = null; return true; }
  const found = await api.search(text);
  if (mine !== searching) return false;
  store.hits = new Uint8Array(store.count);
  for (const row of found) if (row < store.count) store.hits[row] = 1;
  return true;
}
