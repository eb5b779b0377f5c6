// Ask again: the same prompt with sessions hidden, paths blocked, texts taken out or replaced; what it changes beside what was.

const asking = new Map();          // Row to the trial under way.

async function waitFor(id, told) {
  for (;;) {
    const state = await api.asked(id);
    told?.(state);
    if (state.state === 'done') return state;
    if (state.state === 'failed') throw new Error(state.error ?? 'the trial failed');
    if (state.state === 'cancelled') throw new Error('cancelled');
    await new Promise((done) => setTimeout(done, 300));
  }
}

function askPart(held) {
  const section = make('section.card', { 'aria-label': 'Ask again' }, make('h3', { text: 'Ask again' }));
  const trials = make('div');
  const row = current.row;
  if (ALONE) section.append(make('p.empty', {}, 'A file asks no model. ', make('code', { text: `palimpsest view ${quoted(runOf(held).dir ?? 'DIR')} --model MODEL` }), ' does.'));
  else if (!data.model) section.append(make('p.empty', {}, 'No model is at hand: ', make('code', { text: `palimpsest view ${quoted(runOf(held).dir ?? 'DIR')} --model ${quoted(runOf(held).model?.name ?? 'MODEL')}` }), ' has one, or a server’s address as --model.'));
  else if (!(held.sessions ?? []).some((session) => session.shown)) section.append(make('p.empty', { text: 'The prompt of this answer holds no session that could be changed.' }));
  else section.append(askForm(held, row, () => layTrials(trials, held, row)));
  section.append(trials);
  current.layTrials = () => layTrials(trials, held, row);
  current.layTrials();
  return section;
}

const CHANGES = [['block', 'Hide', 'from everything from the question on; the text stays in the prompt'], ['remove', 'Remove', 'take the text out, and compute everything behind it again'], ['replace', 'Replace', 'neutral text of equal length in its place']];

function askForm(held, row, done) {
  // Of a history of thousands: the evidence, what is chosen, and what has most attention.
  const seen = held.sessions.filter((session) => session.shown);
  const masses = shadeMasses(held);
  const most = seen.length > FOLDED && masses ? [...masses].sort((a, b) => b - a)[FOLDED] : -1;
  const sessions = seen.length <= FOLDED ? seen : seen.filter((session) => session.role || all('session').includes(session.label) || masses?.[held.sessions.indexOf(session)] > most);
  const kind = select(CHANGES.map(([key, name]) => [key, name]), 'block', () => { about.textContent = CHANGES.find(([key]) => key === kind.value)[2]; windowLine.hidden = kind.value !== 'block'; }, { 'aria-label': 'Change' });
  const about = make('span.quiet', { text: CHANGES[0][2] });
  const layers = held.layers?.length ?? 0;
  const from = make('input', { type: 'number', min: 0, max: Math.max(0, layers - 1), placeholder: '0', 'aria-label': 'From layer' });
  const to = make('input', { type: 'number', min: 0, max: Math.max(0, layers - 1), placeholder: String(Math.max(0, layers - 1)), 'aria-label': 'To layer' });
  const windowLine = make('label.line', {}, 'at layers ', from, ' to ', to, make('span.quiet', { text: 'both included; empty: all' }));
  const boxes = make('div.pickers', { role: 'group', 'aria-label': 'Sessions to change', tabIndex: -1 });
  const lay = () => {
    const ticked = new Set([...boxes.querySelectorAll('input:checked')].map((input) => input.value));
    const chosen = new Set(all('session'));
    boxes.replaceChildren(...sessions.map((session) => make('label', {}, make('input', { type: 'checkbox', value: session.label, checked: chosen.size ? chosen.has(session.label) : ticked.has(session.label) || (!ticked.size && sideOf(held, session.role) === 'old') }),
      make('span', {}, session.label, session.role ? make(`span.pill.${sideOf(held, session.role) || 'other'}`, { text: session.role }) : '', make('span.quiet', { text: ` ${shortened(session.turns?.[0]?.content ?? '', 70)}` })))));
  };
  lay();
  let before = all('session').join();
  current.redo.push(() => { if (all('session').join() !== before) { before = all('session').join(); lay(); } });
  // A path of one's own: rows that may not see, and what they may not see.
  const pathFrom = select([['', 'no path'], ['question', 'question'], ['answer', 'answer'], ...sessions.map((session) => [session.label, session.label])], '', () => {}, { 'aria-label': 'Path from' });
  const pathTo = select(sessions.map((session) => [session.label, `${session.label}${session.role ? ` (${session.role})` : ''}`]), sessions[0]?.label, () => {}, { 'aria-label': 'Path to' });
  const note = make('input', { type: 'text', maxLength: 200, size: 26, placeholder: 'a note, kept with the trial', 'aria-label': 'Note' });
  const progress = make('progress', { hidden: true, 'aria-label': 'Progress' });
  const status = make('span.quiet', { role: 'status' });
  const cancel = button('Cancel', async () => { const id = asking.get(row); if (id) await api.cancel(id).catch((error) => fail(error.message)); }, { hidden: true });
  const ask = make('button.main', { id: 'ask', text: 'Ask again', disabled: !data.model.ready });
  if (!data.model.ready) status.textContent = 'the model is being loaded…';
  const text = make('p.text.quiet', { 'aria-live': 'off' });
  const follow = async (id) => {
    asking.set(row, id);
    [ask.disabled, cancel.hidden, progress.hidden] = [true, false, false];
    try {
      const end = await waitFor(id, (state) => {
        if (state.of) { progress.max = state.of; progress.value = state.done; } else progress.removeAttribute('value');
        status.textContent = state.state === 'waiting' ? 'waiting for the model…' : `${state.what ?? 'running'}${state.of ? `, ${state.done} of ${state.of}` : ''}`;
        text.textContent = state.text ?? '';
      });
      status.textContent = `done in ${plain(end.trial.seconds)} s`;
      say(`${end.trial.after?.changed || end.trial.after?.answer !== end.trial.before?.answer ? 'The answer changes' : 'The answer stays'}: ${end.trial.after?.answer ?? ''}`);
    } catch (error) {
      status.textContent = error.message;
    }
    text.textContent = '';
    asking.delete(row);
    [ask.disabled, cancel.hidden, progress.hidden] = [false, true, true];
    await done();
  };
  const form = make('form', { onsubmit: async (event) => {
    event.preventDefault();
    const labels = [...boxes.querySelectorAll('input:checked')].map((input) => input.value);
    const window = from.value !== '' || to.value !== '' ? [[from.value === '' ? 0 : from.valueAsNumber, (to.value === '' ? layers - 1 : to.valueAsNumber) + 1]] : undefined;
    const body = { row };
    if (labels.length) body[kind.value] = kind.value === 'block' ? [{ sessions: labels, ...(window ? { layers: window } : {}) }] : labels;
    if (pathFrom.value) body.paths = [{ from: pathFrom.value, to: pathTo.value, ...(window ? { layers: window } : {}) }];
    if (note.value.trim()) body.note = note.value.trim();
    if (!labels.length && !pathFrom.value) { status.textContent = 'choose a session or a path first'; return; }
    fail('');
    try { await follow((await api.ask(body)).id); } catch (error) { status.textContent = error.message; }
  } }, make('div.ask-grid', {}, make('fieldset', {}, make('legend', { text: 'Sessions' }), sessions.length < seen.length ? make('p.quiet', { text: `The evidence, those chosen, and the ${FOLDED} of ${seen.length.toLocaleString('en')} with most attention.` }) : null, boxes),
    make('fieldset', {}, make('legend', { text: 'Change' }), make('div.line', {}, kind, about), windowLine, make('p', {}, make('label.line', {}, 'Also block the path from ', pathFrom, ' to ', pathTo)), note, make('div.line', {}, ask, cancel, progress, status), text)));
  if (asking.has(row)) follow(asking.get(row));
  return form;
}

// What was asked, in words.
function askedWords(asked) {
  const layersOf = (layers) => (layers?.length ? ` at ${layers.map(layersWritten).join(', ')}` : '');
  return [...(asked.block ?? []).map((one) => `hidden: ${one.sessions.join(', ')}${layersOf(one.layers)}`), ...(asked.paths ?? []).map((one) => `path ${one.from} → ${one.to}${layersOf(one.layers)}`),
    asked.remove?.length ? `removed: ${asked.remove.join(', ')}` : '', asked.replace?.length ? `replaced: ${asked.replace.join(', ')}` : ''].filter(Boolean).join('; ') || 'nothing changed';
}
async function layTrials(holder, held, row) {
  let list = held.trials ?? [];
  if (!ALONE) { try { list = (await api.trials(row)).trials; } catch { /* those of the answer's reply stand */ } }
  if (current.held !== held && current.row !== row) return;
  if (!list.length) { holder.replaceChildren(data.model && !ALONE ? make('p.quiet', { text: 'No trial of this answer yet. Each is kept in the run folder.' }) : ''); return; }
  const contrast = list.some((trial) => there(trial.after?.contrast));
  const head = ['asked', 'answer then', contrast ? 'contrast before' : null, contrast ? 'contrast then' : null, 'log p lost per token', 'seconds'].filter(Boolean);
  const lines = list.toReversed().map((trial) => {
    const flips = there(trial.after?.contrast) && there(trial.before?.contrast) && Math.sign(trial.after.contrast) !== Math.sign(trial.before.contrast);
    const other = trial.after?.answer !== trial.before?.answer;
    return make(flips || other ? 'tr.flip' : 'tr', {}, make('th.left', { scope: 'row' }, askedWords(trial.asked ?? {}), trial.note ? make('span.quiet', { text: ` (${trial.note})` }) : '', trial.model?.same === false ? make('span.pill', { text: `by ${trial.model.name}` }) : ''),
      make('td.left', { 'data-name': 'answer then' }, make('span.text', { text: trial.after?.answer ?? NONE }), other ? make('span.pill', { text: flips ? 'turns' : 'other words' }) : make('span.quiet', { text: ' (the same)' })),
      contrast ? make('td', { 'data-name': 'contrast before', text: signed(trial.before?.contrast) }) : null, contrast ? make('td', { 'data-name': 'contrast then', text: signed(trial.after?.contrast) }) : null, make('td', { 'data-name': 'log p lost per token', text: signed(trial.after?.drop) }), make('td', { 'data-name': 'seconds', text: plain(trial.seconds) }));
  });
  const before = list.at(-1).before;
  holder.replaceChildren(make('div.line.spread', {}, make('h4', { text: `Trials (${list.length})` }), make('div.line.tools', {},
    button('JSON', () => download(`${safeName(`${held.case}-${held.probe}-trials`)}.json`, 'application/json', `${JSON.stringify(list, null, 2)}\n`)), button('CSV', () => download(`${safeName(`${held.case}-${held.probe}-trials`)}.csv`, 'text/csv', csv(['time', 'asked', 'before', 'after', 'contrast before', 'contrast after', 'log p lost', 'note'], list.map((trial) => [trial.time, askedWords(trial.asked ?? {}), trial.before?.answer, trial.after?.answer, trial.before?.contrast, trial.after?.contrast, trial.after?.drop, trial.note])))))),
  make('p.quiet', { text: `Before: ${before?.answer ?? held.answer ?? NONE}${before?.anew && before.anew !== before.answer ? ` Asked anew with nothing changed: ${before.anew}` : ''}` }),
  make('div.wide', { tabIndex: 0, role: 'region', 'aria-label': 'Trials' }, make('table.stack', {}, make('caption.away', { text: 'Trials' }), make('thead', {}, make('tr', {}, ...head.map((name, i) => make(i < 2 ? 'th.left' : 'th', { scope: 'col', text: name })))), make('tbody', {}, ...lines))));
}
