// One answer: its parts in their order, from what was asked to what can be taken away.

const current = { row: null, held: null, pictures: [], redo: [], abort: 0 };

// Of the run: what its sessions are called, and the side that a role is on.
const runOf = (held) => data.runs[held.run] ?? {};
const SIDES = { older: 'old', newer: 'new', right: 'right', wrong: 'wrong' };
const sideOf = (held, role) => (role ? SIDES[runOf(held).roles?.find((each) => each.name === role)?.side] ?? '' : '');
// Parts that are no side have the groups' colours, as in the figures.
const colourOf = (held, role) => sideOf(held, role) || (role ? `group${Math.max(0, (runOf(held).roles ?? []).findIndex((each) => each.name === role)) % 6}` : 'bar');
const segments = (held) => { const word = held.condition.segment ?? runOf(held).segment ?? 'session'; return word.endsWith('y') ? `${word.slice(0, -1)}ies` : `${word}s`; };

// The parts of the page of an answer. Each gives its element, or null where it has nothing to show.
const PARTS = [
  ['answer', 'Answer', answerPart], ['history', 'History', stripPart], ['layers', 'Layers', mapPart], ['texts', 'Texts', textsPart],
  ['memory', 'Memory', memoryPart], ['again', 'Ask again', askPart], ['take', 'Take away', takePart],
];

async function renderCase(again) {
  const view = at('case-view');
  const row = rowOf(NAMES.map((key) => one(key)));
  const mine = ++current.abort;
  if (row === undefined) {
    current.row = null;
    view.replaceChildren(caseBar(null, one('case') || 'No answer'), make('div.empty', {}, make('p', { text: 'The address names an answer that is not in these folders:' }), make('code', { text: NAMES.map((key) => one(key)).filter(Boolean).join(' · ') })));
    return;
  }
  if (current.row === row && !again) { refresh(); return; }
  if (current.row !== row) view.setAttribute('aria-busy', 'true');
  const since = performance.now();
  let got;
  try { got = await api.case(row); } catch (error) {
    if (mine !== current.abort) return;
    view.removeAttribute('aria-busy');
    view.replaceChildren(caseBar(row, nameOf(row)[1]), make('div.empty', { text: error.message }));
    current.row = row;
    return;
  }
  if (mine !== current.abort || one('view') !== 'case') return;
  const same = current.row === row;
  // A folder that grew elsewhere, or by a trial, leaves the page as it is: nothing typed is lost.
  if (same && again === true && current.held && current.ready === data.model?.ready && withoutTrials(got) === withoutTrials(current.held)) {
    current.held.trials = got.trials;
    current.layTrials?.();
    return;
  }
  const scroll = same ? scrollY : 0;
  const opened = same ? new Set([...view.querySelectorAll('details[open]')].map(foldName)) : new Set();
  const focus = same ? focusPath() : null;
  Object.assign(current, { row, held: got, pictures: [], redo: [], ready: data.model?.ready });
  view.removeAttribute('aria-busy');
  const nodes = [];
  for (const [id, title, part] of PARTS) {
    const node = part(got);
    if (!node) continue;
    node.id = `part-${id}`;
    node.tabIndex = -1;
    nodes.push([id, title, node]);
  }
  view.replaceChildren(caseBar(row, titleOf(got), got, nodes), ...warningsOf(got), ...nodes.map(([, , node]) => node));
  for (const fold of view.querySelectorAll('details')) if (opened.has(foldName(fold))) fold.open = true;
  for (const picture of current.pictures) picture.draw();
  scrollTo({ top: scroll, behavior: 'instant' });
  if (focus) document.querySelector(focus)?.focus({ preventScroll: true });
  else if (!same) at('main').focus({ preventScroll: true });
  document.title = `${titleOf(got)} · palimpsest`;
  current.took = performance.now() - since;
  performance.measure?.('palimpsest: open case', { start: since });
}
const withoutTrials = (held) => JSON.stringify({ ...held, trials: null });
const foldName = (fold) => fold.dataset.fold ?? fold.querySelector('summary')?.textContent ?? '';
function focusPath() {
  const { activeElement: node } = document;
  if (node?.id) return `#${CSS.escape(node.id)}`;
  const figure = node?.closest?.('figure[id]');
  return figure && node.tagName === 'CANVAS' ? `#${CSS.escape(figure.id)} canvas` : null;
}
const titleOf = (held) => [held.case, held.probe, held.condition.name && held.condition.label].filter(Boolean).join(' · ');
// Draws anew what the address changed, and nothing else.
function refresh() {
  for (const picture of current.pictures) picture.draw();
  for (const redo of current.redo) redo();
}
function pictured(spec) {
  const picture = new Picture(spec);
  current.pictures.push(picture);
  return picture;
}

function caseBar(row, title, held, nodes = []) {
  const order = store.order;
  const place = row === null ? -1 : order.indexOf(row);
  const step = (by) => { const next = order[place + by]; if (next !== undefined) go({ ...caseCleared(), ...addressNames(next) }, true); };
  const [standing, kind] = row === null ? ['', ''] : verdictOf(row);
  return make('div.bar', {},
    make('a', { href: tableAddress(), text: '‹ Table', title: 'The table as it was (Esc)' }),
    make('h2', { id: 'case-title', text: title }),
    standing ? make(`span.pill${kind ? `.${kind}` : ''}`, { text: standing }) : null,
    held?.why?.label ? make('span.pill', { text: held.why.label, title: 'the label of palimpsest why' }) : null,
    make('span.fill'),
    nodes.length ? make('nav', { 'aria-label': 'Parts of this page' }, ...nodes.map(([id, name], i) => make('a', { href: `#part-${id}`, text: name, title: `key ${i + 1}`, onclick: (event) => { event.preventDefault(); toPart(id); } }))) : null,
    place >= 0 ? make('div.line', {}, make('span.quiet', { text: `${place + 1} of ${order.length.toLocaleString('en')}` }),
      button('Previous', () => step(-1), { id: 'step-back', disabled: place <= 0, title: 'Previous answer in the table (p)' }), button('Next', () => step(1), { id: 'step-on', disabled: place + 1 >= order.length, title: 'Next answer in the table (n)' }),
      button('Compare', () => go({ ...changedTo(row) }, true), { title: 'Beside another answer to the same question (c)' })) : null);
}
function toPart(id) {
  const part = at(`part-${id}`);
  part?.scrollIntoView();
  part?.focus({ preventScroll: true });
}
// What was chosen in one answer means nothing in the next, but for what is looked at: rows, measure, axis.
const caseCleared = () => ({ session: null, layer: null, token: null, look: null });

function warningsOf(held) {
  const texts = [withheldWords([runOf(held)]), ...(runOf(held).warnings ?? []), ...(held.warnings ?? [])].filter(Boolean);
  return texts.length ? [make('div.empty', { role: 'note' }, ...texts.map((text) => make('p', { text })))] : [];
}
// What is not there, and the command that brings it.
function missingOf(held, ...words) {
  const found = (held.missing ?? []).filter(({ what }) => words.some((word) => what.toLowerCase().includes(word)));
  if (!found.length) return null;
  return make('div.empty', {}, ...found.map(({ what, command }) => make('p', {}, `No ${what.replace(/^an? /, '')} yet: `, make('code', { text: command }))));
}

// 1. Question and answer, who judged it how, and why it is as it is.
function answerPart(held) {
  const facts = make('dl.facts');
  const fact = (name, ...value) => { if (value.some((each) => there(each) && each !== '')) facts.append(make('dt', { text: name }), make('dd', {}, ...value)); };
  fact('Question', held.query);
  if (held.error) fact('Error', held.error);
  fact(held.reached_limit ? 'Answer, cut at the limit' : 'Answer', answerText(held));
  if (held.thought) fact('Thought', make('details', { 'data-fold': 'thought' }, make('summary', { text: `${count(held.thought.length, 'character')} before the answer, shown to no judge` }), make('div', { text: held.thought })));
  if (held.contrast) {
    fact('Contrast', `${signed(held.contrast.value)} nats`, make('span.quiet', { text: held.contrast.value > 0 ? '  the current value is likelier' : '  the other value is likelier' }));
    fact('Values', make('span', { text: held.contrast.values.map((value) => `${value.text.trim()} (${value.part}) ${plain(value.log_p)}`).join('  ·  ') }));
  }
  if (held.scores) fact('Scores', Object.entries(held.scores).map(([name, x]) => `${name} ${plain(x)}`).join('  ·  '));
  for (const gold of held.gold ?? []) fact(gold.label, gold.text.trim());
  for (const verdict of held.verdicts ?? []) {
    const kind = verdict.correct === true ? 'right' : verdict.correct === false ? 'wrong' : '';
    fact('Judge', make(`span.pill${kind ? `.${kind}` : ''}`, { text: verdict.verdict ?? verdict.error ?? 'no verdict' }),
      make('span.quiet', { text: ` ${verdict.judge}${verdict.counts === false ? ', not the one that the table shows' : ''}` }), there(verdict.probability) ? `, probability of correct ${plain(verdict.probability)}` : '', verdict.reason ? `\n${verdict.reason}` : '', verdict.error && verdict.verdict ? `\n${verdict.error}` : '');
  }
  for (const { judge, replies: words } of held.replies ?? []) fact('Replies', make('details', { 'data-fold': `replies of ${judge}` }, make('summary', { text: `${count(words.length, 'reply', 'replies')} of ${judge}` }), ...words.map((text) => make('div.text', { text }))));
  const { tokens = {} } = held;
  fact('Size', [there(tokens.prompt) && `prompt ${count(tokens.prompt, 'token')}`, there(tokens.answer) && `answer ${count(tokens.answer, 'token')}`, tokens.dropped > 0 && `${count(tokens.dropped, 'token')} of the history dropped`].filter(Boolean).join(', '));
  fact('Condition', held.condition.about ? `${held.condition.label}: ${held.condition.about}` : held.condition.label);
  const labels = Object.entries(held.labels ?? {});
  if (labels.length) fact('Labels', make('details', { 'data-fold': 'labels' }, make('summary', { text: count(labels.length, 'label') }), labels.map(([key, value]) => `${key} ${value}`).join(', ')));
  const first = make('div.card', {}, make('h3', { text: 'Asked and answered' }), facts, missingOf(held, 'verdict', 'judge'));
  return make('section.two', { 'aria-label': 'Answer' }, first, whyCard(held));
}
// The answer; where its tokens are known, each can be chosen, and several.
function answerText(held) {
  if (!there(held.answer)) return held.state === 'not yet' ? 'not yet' : '';
  const holder = make('span.text', { text: held.answer === '' ? '(an empty answer)' : held.answer });
  tokensInto(holder, held);
  return holder;
}

const layersWritten = ([from, to]) => (to - from === 1 ? `layer ${from}` : `layers ${from} to ${to - 1}`);
// The label, its reason, the forward passes that it rests on, and the certificate.
function whyCard(held) {
  const { why } = held;
  if (!why) return make('div.card', {}, make('h3', { text: 'Why' }), missingOf(held, 'label') ?? make('p.empty', { text: held.state === 'not yet' ? 'Not answered yet.' : runOf(held).no_result ? 'No label: it would explain a verdict that is withheld.' : 'No label: palimpsest why is for judged answers of benchmarks whose newer evidence replaces older one.' }));
  const number = why.plain?.measure === 'contrast' ? 'contrast' : 'log p';
  const rows = [];
  for (const side of ['newer', 'older']) {
    const of = why[side];
    if (!of) continue;
    for (const [way, named] of [['blocked', 'hidden'], ['removed', 'removed']]) {
      if (of[way]) rows.push([`${side}, ${named}`, (of.sessions ?? []).join(' '), of[way].drop, of[way].threshold, !there(of[way].threshold) ? 'too few controls' : Math.abs(of[way].drop) > of[way].threshold ? 'larger than random text' : 'no larger than random text', `${of[way].flips ?? 0} of ${of[way].controls ?? 0}`]);
    }
    if (!of.blocked && !of.removed) rows.push([side, (of.sessions ?? []).join(' ') || 'none', null, null, NONE, NONE]);
  }
  const head = ['evidence', 'sessions', `${number} lost`, 'threshold', 'effect', 'controls that turn it'];
  const left = [1, 4];
  // On a phone each row is a block, and each cell says what it is.
  const table = make('table.stack', {}, make('caption.away', { text: 'Forward passes that the label rests on' }), make('thead', {}, make('tr', {}, ...head.map((text, i) => make(left.includes(i) ? 'th.left' : 'th', { scope: 'col', text })))),
    make('tbody', {}, ...rows.map(([name, sessions, drop, threshold, words, flips]) => make('tr', {}, make('th', { scope: 'row', text: name }), ...[sessions, signed(drop), there(threshold) ? `± ${plain(threshold)}` : NONE, words, flips].map((text, i) => make(left.includes(i + 1) ? 'td.left' : 'td', { text, 'data-name': head[i + 1] }))))));
  const { certificate } = why;
  const proof = certificate ? make('div.certificate', {}, make('h4', { text: 'Certificate' }),
    make('p', {}, `With ${certificate.sessions.join(' and ')} hidden from the question on the answer turns`,
      there(certificate.before) ? `: the ${number} goes from ${signed(certificate.before)} to ${signed(certificate.after)}` : '', '. ',
      certificate.layers ? `Hiding at ${layersWritten(certificate.layers)} alone turns it, too. ` : '',
      certificate.sessions.length === 1 ? 'One session is enough. ' : certificate.irreducible ? 'Hiding fewer of them does not turn it. ' : 'Whether fewer are enough was not tested. ',
      certificate.controls ? `Of ${certificate.controls.sets} random sets of equal size ${certificate.controls.flips === 0 ? 'none turns' : `${certificate.controls.flips} turn`} it.` : ''),
    certificate.answer ? make('p', {}, make('span.quiet', { text: 'Then the answer is: ' }), certificate.answer) : null,
    button('Show these sessions', () => go({ session: certificate.sessions }))) : make('p.quiet', { text: why.search ? `No certificate: ${why.search.spent ? 'the search used up its forward passes' : 'no set of sessions turned the answer'}.` : 'No certificate.' });
  const label = why.withheld ? make('p.empty', { text: `The label rests on verdicts that are withheld: ${why.withheld}.` }) : make('p', {}, make('span.pill', { text: why.label }), ` ${why.why ?? ''}`);
  const other = otherJudge(runOf(held), why.judge);
  return make('div.card', {}, make('h3', { text: 'Why' }), label, other ? make('p.quiet', { text: other }) : null, proof,
    there(why.plain?.value) ? make('p.quiet', { text: `${number} with nothing changed: ${signed(why.plain.value)}. ${count(why.readings ?? 0, 'forward pass', 'forward passes')}; judged by ${why.judge}.` }) : null,
    rows.length ? make('div.wide', { tabIndex: 0, role: 'region', 'aria-label': 'Forward passes' }, table) : null,
    make('p.quiet.small', { text: 'Hidden: from everything from the question’s first token on. A label is about this model and this prompt.' }));
}
