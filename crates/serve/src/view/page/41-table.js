// The table's view: columns, filters with counts, search.

// Texts share the width that is left; every other column takes as much as its longest value or the longest word of its name needs, in rem.
const TEXTS = { case: 'minmax(7rem, 1fr)', question: 'minmax(12rem, 3fr)', answer: 'minmax(12rem, 3fr)', note: 'minmax(11rem, 3fr)', error: 'minmax(10rem, 2fr)' };
const PILLS = ['verdict', 'why'];
function widthOf(column) {
  if (TEXTS[column.key]) return TEXTS[column.key];
  const longest = column.unit === 'rank' ? 7 : column.numbers ? 6 : Math.max(3, ...(column.names ?? []).map((name) => (name === EMPTY ? 0 : name.length)));
  const word = Math.max(...column.label.split(/\s+/).map((each) => each.length));
  // A pill has a mark and ends of its own.
  const value = PILLS.includes(column.key) ? (longest + 2) * 0.5 + 1.2 : longest * 0.53;
  return `${clamp(Math.max(value, word * 0.56) + 1.1, 3, 10).toFixed(1)}rem`;
}
// Shown unless the address names others.
const FIRST = ['run', 'case', 'probe', 'condition', 'question', 'answer', 'verdict', 'why', 'rank_mass.', 'rank_effect.', 'shown.', 'lost'];
const SPARED = ['shown.', 'rank_effect.', 'rank_mass.'];   // Left out in turn where a screen lacks the room, all on a phone; Columns has them.
const MANY = 7;                    // Values of a filter that are listed before the rest is asked for.
const LISTED = 300;                // And at most.

const picked = [];                 // Rows selected for a comparison, two at most: the older choice goes.
let grid = null;

function chosenColumns() {
  const named = all('col');
  const order = (column) => {
    const place = FIRST.findIndex((name) => (name.endsWith('.') ? column.key.startsWith(name) : column.key === name));
    return place < 0 ? FIRST.length : place;
  };
  // Of many parts of evidence those that are sides; without sides the first two.
  const roles = unique(data.runs.flatMap((run) => run.roles ?? []).map((role) => role.name));
  const sided = roles.filter((name) => data.runs.some((run) => run.roles?.some((role) => role.name === name && role.side)));
  const front = new Set(roles.length <= 2 ? roles : sided.length ? sided.slice(0, 4) : roles.slice(0, 2));
  const ofFront = (column) => !/^(shown|rank_\w+)\./.test(column.key) || front.has(column.key.slice(column.key.indexOf('.') + 1));
  const wanted = named.length ? store.columns.filter((column) => named.includes(column.key))
    : store.columns.filter((column) => order(column) < FIRST.length && ofFront(column) && !(column.names?.length === 1 && /^(run|condition|shown\..*)$/.test(column.key)));
  const room = at('table-side').clientWidth / REM;
  const fitting = SPARED.reduce((columns, group) => (named.length || (!PHONE.matches && leastOf(columns) <= room) ? columns : columns.filter((column) => !column.key.startsWith(group))), wanted);
  return fitting.toSorted((a, b) => order(a) - order(b));
}
// The least that columns take, in rem.
const leastOf = (columns) => 2 + sum(columns.map((column) => Number.parseFloat(/[\d.]+/.exec(widthOf(column))[0])));
const REM = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);

// Why verdicts of these runs are shown nowhere.
const withheldWords = (runs) => unique(runs.map((run) => run.no_result).filter(Boolean)).map((why) => `Verdicts are withheld: ${why}.`).join(' ');
// Labels of why can rest on another judge's verdicts than those shown.
const otherJudge = (run, judge) => (run.judge && judge && judge !== run.judge ? `Labels of why explain the verdicts of ${judge}; the verdicts shown are by ${run.judge}.` : '');
const otherJudges = (runs) => unique(runs.flatMap((run) => (run.why_judges ?? []).map((judge) => otherJudge(run, judge)))).filter(Boolean).join(' ');
// A value as the table writes it.
function written(column, row) {
  if (column.numbers) {
    const x = column.numbers[row];
    if (Number.isNaN(x)) return '';
    if (column.unit === 'share') return percent(x);
    if (column.unit === 'nats') return signed(x);
    return Number.isInteger(x) ? x.toLocaleString('en') : plain(x);
  }
  const value = valueOf(column, row);
  return value === EMPTY ? '' : value;
}
const CORRECT = { right: 'right', wrong: 'wrong' };
// The verdict's pill; where there is no answer to judge, what there is instead.
function verdictOf(row) {
  const [verdict, correct, state] = ['verdict', 'correct', 'state'].map((key) => textOf(key, row));
  const standing = state && !['answered', 'cut'].includes(state) ? state : verdict;
  return [standing, CORRECT[correct] ?? (['error', 'thought cut'].includes(state) ? 'failed' : '')];
}


function fillRow(of, row, columns) {
  if (row.children.length !== columns.length + 4) {
    row.replaceChildren(make('span.hold', { role: 'gridcell', title: 'Select for a comparison' }),
      ...columns.map((column) => make('span', { role: 'gridcell' }, column.key === 'case' ? make('a', { tabIndex: -1 }) : PILLS.includes(column.key) ? make('span') : '')),
      ...['phone-name', 'phone-asked.quiet', 'phone-more.quiet'].map((name) => make(`span.${name}`, { 'aria-hidden': 'true' })));
  }
  const cells = row.children;
  cells[0].setAttribute('aria-label', picked.includes(of) ? 'selected' : 'not selected');
  columns.forEach((column, i) => {
    const cell = cells[i + 1];
    const text = written(column, of);
    if (column.key === 'case') {
      const link = cell.firstChild;
      link.textContent = text;
      link.href = addressOf(changed({ view: 'case', ...addressNames(of) }));
      cell.className = 'c-case wrap';
      cell.title = text;
    } else if (column.key === 'verdict') {
      const [standing, kind] = verdictOf(of);
      cell.className = 'c-verdict';
      cell.firstChild.className = standing ? `pill ${kind}` : '';
      cell.firstChild.textContent = standing;
    } else if (column.key === 'why') {
      cell.className = 'c-why';
      cell.firstChild.className = text ? `pill ${text === 'right' ? '' : text === 'undecided' ? '' : 'label'}` : '';
      cell.firstChild.textContent = text;
    } else {
      cell.className = column.numbers ? 'number' : TEXTS[column.key] ? `wrap${column.key === 'answer' ? '' : ' quiet'}` : '';
      cell.textContent = text;
      cell.title = text.length > 24 ? text : '';
    }
  });
  const name = nameOf(of);
  cells[columns.length + 1].textContent = `${name[1]} · ${name[2]}`;
  cells[columns.length + 2].textContent = textOf('question', of);
  cells[columns.length + 3].textContent = [textOf('answer', of), name[3] !== 'plain' && name[3], store.byKey.get('run')?.names?.length > 1 && name[0]].filter(Boolean).join(' · ');
}

function layTable() {
  const columns = chosenColumns();
  grid ??= new Grid({
    label: 'Answers', columns: () => chosenColumns().length + 1, cells: (of, row) => fillRow(of, row, grid.columns),
    open: (of) => go({ view: 'case', ...addressNames(of) }, true),
    hold(of) {
      const place = picked.indexOf(of);
      if (place >= 0) picked.splice(place, 1);
      else { picked.push(of); if (picked.length > 2) picked.shift(); }
      say(place >= 0 ? 'no longer selected' : `selected, ${picked.length} of 2 for a comparison`);
      layTools();
    },
    held: (of) => picked.includes(of),
  });
  if (!grid.scroller.isConnected) at('grid-holder').append(grid.scroller);
  grid.columns = columns;
  grid.scroller.style.setProperty('--columns', ['2rem', ...columns.map(widthOf)].join(' '));
  // The least that the columns take: head and rows share it, so that they stand in line.
  grid.scroller.style.setProperty('--least', `${leastOf(columns)}rem`);
  const sort = one('sort');
  grid.head.replaceChildren(make('span', { role: 'columnheader' }, make('span.away', { text: 'selected' })), ...columns.map((column) => {
    const mine = sort === column.key ? 'ascending' : sort === `-${column.key}` ? 'descending' : null;
    const press = () => {
      // Numbers are asked for from the largest on, ranks and texts from the first; a third press takes the order away.
      const first = column.numbers && column.unit !== 'rank' ? `-${column.key}` : column.key;
      const second = first === column.key ? `-${column.key}` : column.key;
      go({ sort: sort === first ? second : sort === second ? null : first });
      grid.head.querySelector(`[data-key="${CSS.escape(column.key)}"] button`)?.focus();
    };
    return make(column.numbers ? 'span.number' : 'span', { role: 'columnheader', 'aria-sort': mine, 'data-key': column.key }, button(column.label, press, { title: column.about ?? '' }));
  }));
  layTools();
}

// Compare and take away stand beside the search.
function layTools() {
  const shownRows = () => Array.from(store.order);
  at('table-tools').replaceChildren(...[
    picked.length > 0 && button(picked.length === 2 ? 'Compare the two' : 'Compare…', () => compareHeld(), { title: 'Two selected rows side by side (c)' }),
    button('Columns', (event) => columnsDialog(event.currentTarget), { 'aria-haspopup': 'dialog' }),
    button('CSV', () => {
      const head = store.columns.map((column) => column.key);
      download('answers.csv', 'text/csv', csv(head, shownRows().map((row) => store.columns.map((column) => { const value = valueOf(column, row); return value === EMPTY && column.kind === 'category' ? '' : value; }))));
    }, { title: 'The rows shown, all columns, with all digits' }),
    button('Command', (event) => copy(commandHere(), event.currentTarget), { title: 'Copies the palimpsest command that shows this' }),
    button('Python', (event) => copy(pythonOfTable(), event.currentTarget), { title: 'Copies lines of Python that give these rows' }),
  ].filter(Boolean));
}
function columnsDialog(from) {
  const box = make('dialog.columns', { 'aria-label': 'Columns' });
  const now = new Set(chosenColumns().map((column) => column.key));
  const list = store.columns.map((column) => make('label', {}, make('input', { type: 'checkbox', checked: now.has(column.key), value: column.key }), make('span', { text: column.label }), make('span.quiet', { text: column.about ?? '' })));
  const done = () => { box.close(); box.remove(); from.focus(); };
  box.append(make('h2', { text: 'Columns' }), ...list, make('div.line', {},
    button('Show these', () => { go({ col: [...box.querySelectorAll('input:checked')].map((input) => input.value) }); done(); layTable(); grid.fill(store.order, true); }, { class: 'main' }),
    button('As at first', () => { go({ col: null }); done(); layTable(); grid.fill(store.order, true); }), button('Close', done)));
  box.addEventListener('cancel', (event) => { event.preventDefault(); done(); });
  document.body.append(box);
  box.showModal();
}

// Filters, with how many rows have each value among those that pass the other filters.
const unfolded = new Set();
function layFilters() {
  const list = at('filter-list');
  const focused = document.activeElement?.closest?.('#filter-list input')?.dataset.name;
  const scrolled = at('filters').scrollTop;
  const wanted = filters();
  list.replaceChildren(...store.columns.filter((column) => column.codes && (column.names.length > 1 || wanted[column.key]) && !['correct', 'question'].includes(column.key)).toSorted((a, b) => filterPlace(a) - filterPlace(b)).map((column) => {
    const counts = store.counts.get(column.key);
    let codes = column.names.map((_, code) => code);
    if (!column.numbers) codes.sort((a, b) => (column.names[a] === EMPTY) - (column.names[b] === EMPTY) || (column.key === 'case' ? a - b : counts[b] - counts[a] || a - b));
    const on = new Set(wanted[column.key] ?? []);
    codes = codes.filter((code) => counts[code] > 0 || on.has(column.names[code]) || codes.length <= MANY);
    const open = unfolded.has(column.key);
    const front = codes.filter((code, i) => i < (open ? LISTED : MANY) || on.has(column.names[code]));
    return make('fieldset', {}, make('legend', { text: column.label, title: column.about ?? '' }), ...front.map((code) => {
      const name = column.names[code];
      const input = make('input', { type: 'checkbox', checked: on.has(name), 'data-name': `${column.key}=${name}`, onchange: () => {
        const now = new Set(filters()[column.key] ?? []);
        if (input.checked) now.add(name); else now.delete(name);
        go({ [`f.${column.key}`]: [...now] });
      } });
      return make(counts[code] === 0 ? 'label.nothing' : 'label', { title: name }, input, make('span', { text: name }), make('output', { text: counts[code].toLocaleString('en'), 'aria-label': count(counts[code], 'row') }));
    }), codes.length > MANY ? make('button.more', { type: 'button', text: open ? 'fewer' : codes.length > LISTED ? `the first ${LISTED} of ${codes.length.toLocaleString('en')}` : `all ${codes.length}`, onclick: () => { if (open) unfolded.delete(column.key); else unfolded.add(column.key); layFilters(); } }) : null);
  }));
  if (focused) list.querySelector(`input[data-name="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  at('filters').scrollTop = scrolled;
}
const FILTER_ORDER = ['verdict', 'why', 'probe', 'type', 'condition', 'run', 'lost', 'state'];
const filterPlace = (column) => {
  const place = FILTER_ORDER.indexOf(column.key);
  return place >= 0 ? place : column.key === 'case' ? 99 : column.numbers ? 60 : 40;
};
function layActive() {
  const chips = Object.entries(filters()).flatMap(([key, names]) => names.map((name) => button(`${store.byKey.get(key)?.label ?? key}: ${name} ×`, () => go({ [`f.${key}`]: names.filter((each) => each !== name) }), { 'aria-label': `Remove the filter ${store.byKey.get(key)?.label ?? key}: ${name}` })));
  if (chips.length > 1) chips.push(button('No filter', () => go(Object.fromEntries(Object.keys(filters()).map((key) => [`f.${key}`, null])))));
  at('active').replaceChildren(...chips);
}

let sifted = '';
async function renderTable(fresh) {
  const text = one('q');
  if (at('search').value !== text && document.activeElement !== at('search')) at('search').value = text;
  const wanted = JSON.stringify([text, filters(), one('sort'), all('col'), data.stamp]);
  if (wanted !== sifted || fresh) {
    const [searched, stamp] = [JSON.parse(sifted || '[""]')[0], JSON.parse(sifted || '[]')[4]];
    if (text !== searched || (text && stamp !== data.stamp)) {
      at('found').textContent = 'searching…';
      try { if (!await search(text)) return; } catch (error) { fail(error.message); store.hits = null; }
    }
    const grown = stamp !== undefined && stamp !== data.stamp;
    sifted = wanted;
    sift();
    layTable();
    layFilters();
    layActive();
    grid.fill(store.order, grown || fresh === 'back');
  }
  at('found').textContent = store.order.length === store.count ? count(store.count, 'answer') : `${store.order.length.toLocaleString('en')} of ${count(store.count, 'answer')}`;
  at('withheld').textContent = [withheldWords(data.runs), otherJudges(data.runs)].filter(Boolean).join(' ');
  const empty = at('table-empty');
  empty.hidden = store.order.length > 0;
  at('grid-holder').hidden = store.order.length === 0;
  if (store.order.length === 0) {
    empty.replaceChildren(make('p', { text: store.count === 0 ? 'No answer is planned in these folders yet.' : 'No answer passes these filters.' }), store.count === 0 ? make('code', { text: 'palimpsest run --data sample --limit 4 --context 4096 --out runs/first' })
      : button('Show all answers', () => go({ q: null, ...Object.fromEntries(Object.keys(filters()).map((key) => [`f.${key}`, null])) })));
  }
}
