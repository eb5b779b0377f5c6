// Compare: two answers to the same question side by side; two sides (a run under a condition) over all of their questions, and what flipped.

const sides = () => data.runs.flatMap((run) => (run.error ? [] : (run.conditions ?? []).map((condition) => ({ key: `${run.run}:${condition.name}`, label: data.runs.length > 1 ? `${run.id}, ${condition.label}` : condition.label, run, condition }))));
const sideKey = (row) => { const [id, , , label] = nameOf(row); const run = data.runs.find((each) => each.id === id) ?? data.runs[0]; const condition = run?.conditions?.find((each) => each.label === label || each.name === label) ?? { name: '' }; return `${run?.run ?? 0}:${condition.name}`; };
// In the address, sides and answers have names, as everywhere.
const sideName = (key) => { const [run, ...rest] = key.split(':'); return `${data.runs[Number(run)]?.id ?? run}:${rest.join(':')}`; };
const sideOfName = (name) => { const found = sides().find((side) => sideName(side.key) === name); return found?.key ?? null; };

// The address that compares an answer with another to the same question, the other to be chosen.
const changedTo = (row) => ({ view: 'compare', ...addressNames(row), 'with.run': null, 'with.case': null, 'with.probe': null, 'with.condition': null, a: null, b: null, session: null, layer: null });
const withNames = (row) => Object.fromEntries(Object.entries(addressNames(row)).map(([key, value]) => [`with.${key}`, value]));
function compareHeld() {
  if (picked.length === 2) go({ ...changedTo(picked[0]), ...withNames(picked[1]) }, true);
  else if (picked.length === 1) go(changedTo(picked[0]), true);
  else go({ view: 'compare', run: null, case: null, probe: null, condition: null }, true);
}

// Other answers to the question of this one.
function others(row) {
  const [, name, probe] = nameOf(row);
  const found = [];
  for (let other = 0; other < store.count; other += 1) {
    if (other === row) continue;
    const [, otherName, otherProbe] = nameOf(other);
    if (otherName === name && otherProbe === probe) found.push(other);
  }
  return found;
}

let comparing = 0;
async function renderCompare() {
  const view = at('compare-view');
  const mine = ++comparing;
  const row = rowOf(NAMES.map((key) => one(key)));
  const other = rowOf(NAMES.map((key) => one(`with.${key}`)));
  current.row = null;
  current.pictures = [];
  current.redo = [];
  const scroll = scrollY;
  const bar = make('div.bar', {}, make('a', { href: tableAddress(), text: '‹ Table', title: 'The table as it was (Esc)' }), make('h2', { id: 'compare-title', text: row === undefined ? 'Compare' : `Compare: ${one('case')} · ${one('probe')}` }));
  const parts = row !== undefined ? await pairParts(row, other) : [];
  const over = await overParts(row, other);
  if (mine !== comparing || one('view') !== 'compare') return;
  view.replaceChildren(bar, ...parts, ...over);
  for (const picture of current.pictures) picture.draw();
  scrollTo({ top: scroll, behavior: 'instant' });
  document.title = 'Compare · palimpsest';
}

// Lanes of which both answers are shown.
const PAIRED = ['mass.query', 'direct', 'total', 'contrast.direct', 'contrast.total'];

async function pairParts(row, other) {
  const candidates = others(row);
  const name = (of) => { const names = nameOf(of); return [data.runs.length > 1 ? names[0] : '', names[3], verdictOf(of)[0]].filter(Boolean).join(' · '); };
  const picker = make('label.line', {}, 'With ', candidates.length ? select([['', 'choose…'], ...candidates.map((of) => [String(of), name(of)])], other === undefined ? '' : String(other), (value) => go(value ? withNames(Number(value)) : { 'with.run': null, 'with.case': null, 'with.probe': null, 'with.condition': null })) : make('span.quiet', { text: 'no other answer to this question is in these folders' }));
  if (other === undefined) {
    return [make('section.card', {}, picker, candidates.length ? '' : make('div.empty', {}, make('p', {}, 'Other conditions: ', make('code', { text: 'palimpsest run … --conditions full,evidence' })), make('p', {}, 'Other models or systems: ', make('code', { text: 'palimpsest view RUN OTHER-RUN' }))))];
  }
  let pair;
  try { pair = await Promise.all([api.case(row), api.case(other)]); } catch (error) { return [make('p.empty', { text: error.message })]; }
  const [a, b] = pair;
  const facts = [];
  const fact = (label, of) => { const values = pair.map(of); if (values.some((value) => there(value) && value !== '')) facts.push([label, ...values.map((value) => value ?? NONE), values[0] !== values[1]]); };
  fact('run', (held) => runOf(held).id);
  fact('model', (held) => runOf(held).model?.name);
  fact('condition', (held) => held.condition.label);
  fact('verdict', (held) => held.verdicts?.find((verdict) => verdict.counts !== false)?.verdict);
  fact('label of why', (held) => held.why?.label);
  fact('contrast', (held) => (there(held.contrast?.value) ? signed(held.contrast.value) : null));
  for (const role of unique(pair.flatMap((held) => (runOf(held).roles ?? []).map((each) => each.name)))) {
    fact(`${role} shown`, (held) => { const found = held.sessions.filter((session) => session.role === role || session.holds === role); return found.length ? (found.every((session) => session.shown) ? 'yes' : found.some((session) => session.shown) ? 'part' : 'no') : 'no'; });
    for (const key of PAIRED) {
      const label = pair.flatMap((held) => held.strip ?? []).find((lane) => lane.key === key)?.label;
      if (label) fact(`${role}: ${label}`, (held) => { const lane = held.strip?.find((each) => each.key === key); const numbers = lane ? held.sessions.map((session, i) => [session, lane.values[i]]).filter(([session, x]) => session.role === role && there(x)).map(([, x]) => x) : []; return numbers.length ? unitWritten(lane.unit, sum(numbers)) : null; });
    }
  }
  fact('certificate', (held) => held.why?.certificate?.sessions?.join(' '));
  fact('prompt tokens', (held) => held.tokens?.prompt?.toLocaleString('en'));
  const verdicts = pair.map((held) => held.verdicts?.find((verdict) => verdict.counts !== false)?.correct);
  const flip = there(verdicts[0]) && there(verdicts[1]) && verdicts[0] !== verdicts[1] ? `It flips: ${verdicts[0] ? 'right' : 'wrong'} on the left, ${verdicts[1] ? 'right' : 'wrong'} on the right.` : a.answer === b.answer ? 'The answers are the same, word for word.' : verdicts.every(there) ? 'The answers differ; the verdict does not flip.' : 'The answers differ.';
  const sideCard = (held, of) => make('div.card', {}, make('h3', {}, make('a', { href: addressOf({ ...tableOnly(), view: ['case'], ...Object.fromEntries(Object.entries(addressNames(of)).filter(([, value]) => value).map(([key, value]) => [key, [value]])) }), text: name(of) })),
    make('p.text', { text: held.error ?? held.answer ?? 'not yet' }), ...(held.verdicts ?? []).filter((verdict) => verdict.reason).slice(0, 1).map((verdict) => make('p.quiet', { text: `${verdict.judge}: ${verdict.reason}` })), held.why?.label ? make('p', {}, make('span.pill', { text: held.why.label }), ` ${held.why.why ?? ''}`) : null);
  const table = make('table', {}, make('caption.away', { text: 'Side by side' }), make('thead', {}, make('tr', {}, make('th', { scope: 'col' }), make('th.left', { scope: 'col', text: name(row) }), make('th.left', { scope: 'col', text: name(other) }))), make('tbody', {}, ...facts.map(([label, x, y, differs]) => make(differs ? 'tr.flip' : 'tr', {}, make('th', { scope: 'row', text: label }), make('td.left', { text: x }), make('td.left', { text: y }), ))));
  return [make('section.card', { 'aria-label': 'The pair' }, picker, make('p', {}, make('strong', { text: a.query })), make('p', { text: flip, id: 'flip' }), make('div.wide', { tabIndex: 0, role: 'region', 'aria-label': 'Side by side' }, table)),
    make('div.versus', {}, sideCard(a, row), sideCard(b, other)), pairStrip(a, b, ...laneNames(row, other))].filter(Boolean);
}

// What tells the two apart, in a word or two.
function laneNames(row, other) {
  const [x, y] = [nameOf(row), nameOf(other)];
  const parts = [0, 3].filter((i) => x[i] !== y[i]);
  return [x, y].map((names, i) => parts.map((part) => names[part]).join(' ') || ['left', 'right'][i]);
}
// Both histories on one axis: a session that both were shown stands in one column.
function pairStrip(a, b, nameA, nameB) {
  const indexes = unique([a, b].flatMap((held) => held.sessions.map((session) => session.index))).sort((x, y) => x - y);
  const find = (held, index) => held.sessions.findIndex((session) => session.index === index);
  const sessions = indexes.map((index) => { const [x, y] = [a.sessions[find(a, index)], b.sessions[find(b, index)]]; return { ...(x ?? y), dropped: (!x || x.dropped) && (!y || y.dropped) }; });
  const lanes = PAIRED.flatMap((key) => [[a, nameA], [b, nameB]].flatMap(([held, name]) => {
    const lane = held.strip?.find((each) => each.key === key);
    const of = (values) => (Array.isArray(values) ? indexes.map((index) => { const i = find(held, index); return i < 0 ? null : values[i]; }) : values);
    return lane?.values.some(there) ? [{ ...lane, label: `${lane.label}`, from: shortened(name, 18), values: of(lane.values), baseline: of(lane.baseline), low: of(lane.low ?? null), high: of(lane.high ?? null) }] : [];
  }));
  if (!lanes.length) return null;
  for (const lane of lanes) lane.beside = lanes.filter((each) => each.key === lane.key).flatMap((each) => each.values);
  const both = { ...a, sessions };
  const picture = pictured({
    id: 'pair', title: 'Both histories on one axis', draw: (width) => drawStrip(both, lanes, sessions, width), words: (c, r) => stripWords(both, lanes.map((lane) => ({ ...lane, label: `${lane.label} ← ${lane.from}` })), c, r),
    pick: (c, _, more) => chooseSession(sessions[c].label, more), table: () => numbersOf(both, lanes.map((lane) => ({ ...lane, key: `${lane.key} (${lane.from})` }))),
    take: { name: () => `${a.case}-${a.probe}-compared`, python: () => `${pythonOf(a)}${pythonOf(b)}`, command: () => commandHere() },
  });
  return make('section.card', { 'aria-label': 'Both histories' }, picture.root);
}

// Two sides over all of their questions.
async function overParts(row, other) {
  const list = sides();
  const section = make('section.card', { 'aria-label': 'Over all questions' }, make('h3', { text: 'Over all questions' }));
  if (ALONE) { section.append(make('p.empty', { text: `The counts over all questions are ${NEEDS_SERVER}.` })); return [section]; }
  if (list.length < 2) {
    section.append(make('div.empty', {}, make('p', { text: 'There is only one side: one run under one condition.' }), make('p', {}, make('code', { text: 'palimpsest view RUN OTHER-RUN' }))));
    return [section];
  }
  const a = sideOfName(one('a')) ?? (row !== undefined ? sideKey(row) : list[0].key);
  const b = sideOfName(one('b')) ?? (other !== undefined ? sideKey(other) : list.find((side) => side.key !== a)?.key);
  const options = list.map((side) => [side.key, side.label]);
  section.append(make('div.line', {}, make('label', {}, 'Left ', select(options, a, (value) => go({ a: sideName(value) }))), make('label', {}, 'Right ', select(options, b, (value) => go({ b: sideName(value) })))));
  let got;
  try { got = await api.compare(a, b); } catch (error) { section.append(make('p.empty', { text: error.message })); return [section]; }
  const withheld = withheldWords(data.runs.filter((run) => [a, b].some((side) => side?.startsWith(`${run.run}:`))));
  if (withheld) {
    section.append(make('p.empty', { text: withheld }), make('p.quiet', { text: `${count(got.pairs.length, 'question')} on both sides, ${count(got.different_answers, 'answer')} in other words` }), ...(got.notes ?? []).map((text) => make('p.quiet', { text })));
    return [section];
  }
  section.append(make('table#sides', { id: 'sides' }, make('caption.away', { text: 'Questions by their verdicts on both sides' }), make('thead', {}, make('tr', {}, make('th'), make('th', { scope: 'col', text: `right on ${got.b}` }), make('th', { scope: 'col', text: `wrong on ${got.b}` }))),
    make('tbody', {}, make('tr', {}, make('th', { scope: 'row', text: `right on ${got.a}` }), make('td', { text: String(got.both) }), make('td', { text: String(got.only_a) })), make('tr', {}, make('th', { scope: 'row', text: `wrong on ${got.a}` }), make('td', { text: String(got.only_b) }), make('td', { text: String(got.neither) })))));
  section.append(make('p.quiet', { text: [`${count(got.pairs.length, 'question')} that both were asked`, there(got.p) ? `exact McNemar p = ${plain(got.p)}` : '', got.unjudged ? `${got.unjudged} without a verdict on both sides` : '', there(got.different_answers) ? `${got.different_answers} answers in other words` : ''].filter(Boolean).join(' · ') }), ...(got.notes ?? []).map((text) => make('p.quiet', { text })));
  section.append(make('h4', { text: `What flipped (${got.flips.length})` }));
  if (!got.flips.length) section.append(make('p.quiet', { text: 'no verdict' }));
  else {
    section.append(make('div.scroll', { tabIndex: 0, role: 'region', 'aria-label': 'What flipped' }, make('table.flips', {}, make('tbody', {}, ...got.flips.map((flip) => make('tr', {}, make('th', { scope: 'row' }, make('a', { href: addressOf(changed({ ...changedTo(flip.a), ...withNames(flip.b), a: one('a'), b: one('b') })), text: `${nameOf(flip.a)[1]} · ${nameOf(flip.a)[2]}` })), make('td.left', {}, make(`span.pill.${flip.to}`, { text: `becomes ${flip.to}` }))))))));
  }
  return [section];
}
