// The history as a strip: a column a session, a lane a measure, all on one axis. Columns are chosen by a click or by Enter; several are summed.

const LANE = { height: 38, gap: 16, label: 176, top: 34, bottom: 34, narrow: 560 };
const OF_VIEWER = ['mass', 'density', 'selected', 'forgone'];
const FRONT = ['direct', 'total', 'replaced', 'forced', 'contrast.', 'value_norm', 'contextcite'];

const chosenSessions = (held) => (held.sessions ?? []).filter((session) => all('session').includes(session.label));
function chooseSession(label, more) {
  const now = new Set(all('session'));
  if (more) { if (!now.delete(label)) now.add(label); }
  else if (now.size === 1 && now.has(label)) now.clear();
  else { now.clear(); now.add(label); }
  go({ session: [...now] });
}
const unitWritten = (unit, x) => ({ share: percent, ratio: times, nats: signed, logit: signed }[unit] ?? plain)(x);

// Lanes that are there, and those that are shown unless the address says others.
const lanesOf = (held) => (held.strip ?? []).filter((lane) => lane.values.some(there));
function shownLanes(held) {
  const lanes = lanesOf(held);
  const named = all('lane');
  if (named.length) return lanes.filter((lane) => named.includes(lane.key));
  const viewer = held.rows?.[held.viewer]?.label ?? 'query';
  return lanes.filter((lane) => (OF_VIEWER.some((key) => lane.key === `${key}.${viewer}`) || FRONT.some((key) => lane.key.startsWith(key))) && lane.group !== 'control' && !lane.key.endsWith('.control') && !lane.key.endsWith('.kl')).slice(0, 10);
}

// Where the columns are: of equal width, or by their tokens.
function columnsOf(sessions, left, width) {
  const weights = sessions.map((session) => (one('axis') === 'tokens' ? Math.max(1, session.tokens ? session.tokens[1] - session.tokens[0] : 1) : 1));
  const whole = sum(weights);
  let x = left;
  return weights.map((weight) => { const w = (width * weight) / whole; const box = [x, w]; x += w; return box; });
}
function underColumn(columns, x) {
  const found = columns.findIndex(([from, w]) => x >= from && x < from + w);
  return found < 0 ? null : found;
}
const unseen = (session) => session.dropped || session.shown === false;
// Marks of roles above the columns, and numbers of sessions below them.
function axes(scene, held, sessions, columns, top, bottom) {
  let free = -Infinity;
  sessions.forEach((session, i) => {
    const [x, w] = columns[i];
    if (session.role) {
      const colour = colourOf(held, session.role);
      scene.rect(x + 0.5, top - 6, Math.max(2, w - 1), 4, colour);
      const size = 11;
      const wide = session.role.length * 6.2;
      const middle = clamp(x + w / 2, wide / 2 + 1, scene.width - wide / 2 - 1);
      if (middle - wide / 2 > free) { scene.text(middle, top - 11, session.role, { size, anchor: 'middle', weight: 600, fill: colour }); free = middle + wide / 2 + 4; }
    }
  });
  let last = -Infinity;
  sessions.forEach((session, i) => {
    const [x, w] = columns[i];
    // What a prompt of memories does not hold is a session, whose number is none of theirs.
    const text = unseen(session) && !session.dropped ? '–' : String(session.index ?? i);
    const wide = text.length * 6.5 + 8;
    if (x + w / 2 - wide / 2 < last) return;
    scene.text(x + w / 2, bottom + 14, text, { size: 11, anchor: 'middle', fill: unseen(session) ? 'line' : 'quiet' });
    last = x + w / 2 + wide / 2;
  });
  const kind = held.condition.segment ?? runOf(held).segment ?? 'session';
  scene.text(columns[0][0], bottom + 29, `${kind}, numbered from 0${sessions.some((session) => session.dropped) ? '; grey: dropped' : ''}${one('axis') === 'tokens' ? '; width by tokens' : ''}`, { size: 11, fill: 'quiet' });
}
function bands(scene, held, sessions, columns, top, height) {
  const chosen = new Set(all('session'));
  sessions.forEach((session, i) => {
    const [x, w] = columns[i];
    if (chosen.has(session.label)) scene.rect(x, top, w, height, null, { stroke: 'select', width: 1.5 });
  });
}

// One bound for all sessions, or one each.
const bound = (values, i) => (Array.isArray(values) ? values[i] : values);
const laneName = (lane) => `${lane.label}${lane.from && !lane.label.includes(lane.from) ? ` ← ${lane.from}` : ''}`;
function wrapped(text, most) {
  const lines = [''];
  for (const word of text.split(' ')) {
    if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > most && lines.length < 2) lines.push(word);
    else lines[lines.length - 1] = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
  }
  return lines.map((line) => shortened(line, most));
}

function drawStrip(held, lanes, sessions, width, values = null) {
  const narrow = width < LANE.narrow;
  const left = narrow ? 2 : LANE.label;
  const pitch = LANE.height + LANE.gap + (narrow ? 8 : 0);
  const height = LANE.top + lanes.length * pitch + LANE.bottom;
  const scene = new Scene(width, height, `History of ${held.case} ${held.probe}`);
  const columns = columnsOf(sessions, left, width - left - 2);
  sessions.forEach((session, i) => { if (unseen(session)) scene.rect(columns[i][0], LANE.top, columns[i][1], lanes.length * pitch - 6, 'none'); });
  const tops = lanes.map((_, lane) => LANE.top + lane * pitch + (narrow ? 16 : 6));
  lanes.forEach((lane, l) => {
    const top = tops[l];
    const baseline = (i) => bound(lane.baseline, i);
    // Lanes that are held against each other have one scale.
    const numbers = [...lane.values.flatMap((x, i) => [x, baseline(i), bound(lane.low, i), bound(lane.high, i)]), ...(lane.beside ?? [])].filter(there);
    const high = roundUp(Math.max(0, ...numbers));
    const low = Math.min(0, ...numbers) < 0 ? -roundUp(-Math.min(0, ...numbers)) : 0;
    const reach = high - low || 1;
    const y = (x) => top + LANE.height * (1 - (clamp(x, low, high) - low) / reach);
    const label = laneName(lane);
    const end = `${unitWritten(lane.unit, high)}${low < 0 ? ` … ${unitWritten(lane.unit, low)}` : ''}`;
    if (narrow) {
      scene.text(left, top - 4, shortened(label, Math.floor(width / 8)), { size: 11, weight: 600 });
      scene.text(width - 2, top - 4, end, { size: 10, anchor: 'end', fill: 'quiet' });
    } else {
      const lines = wrapped(label, 24);
      lines.forEach((line, n) => scene.text(left - 8, top + 10 + n * 13, line, { size: 11.5, anchor: 'end', weight: 600 }));
      scene.text(left - 8, top + 11 + lines.length * 13, end, { size: 10.5, anchor: 'end', fill: 'quiet' });
    }
    scene.rect(left, top, width - left - 2, LANE.height, 'none');
    // The middle of the controls' effects, where one band holds for all sessions.
    if (there(lane.low) && !Array.isArray(lane.low)) scene.rect(left, y(lane.high), width - left - 2, Math.max(1, y(lane.low) - y(lane.high)), 'line');
    sessions.forEach((session, i) => {
      const [x, w] = columns[i];
      const value = lane.values[i];
      const pad = w > 8 ? 1.5 : w > 3 ? 0.5 : 0;
      if (there(value)) {
        const [from, to] = [y(Math.max(value, 0)), y(Math.min(value, 0))];
        scene.rect(x + pad, from, Math.max(0.6, w - 2 * pad), Math.max(to - from, value === 0 ? 0 : 0.8), colourOf(held, session.role ?? null));
      }
      const rest = baseline(i);
      if (there(rest)) scene.line(x + pad, y(rest), x + w - pad, y(rest), 'ink', { width: 1.6, dash: [2, 2] });
      if (Array.isArray(lane.low) && there(lane.low[i]) && there(lane.high[i])) scene.line(x + w / 2, y(lane.low[i]), x + w / 2, y(lane.high[i]), 'ink', { width: 1.4 });
    });
    scene.line(left, y(0), width - 2, y(0), 'quiet', { width: 1 });
  });
  const bottom = LANE.top + lanes.length * pitch - (narrow ? 2 : 6);
  bands(scene, held, sessions, columns, LANE.top, bottom - LANE.top);
  axes(scene, held, sessions, columns, LANE.top, bottom);
  return {
    scene,
    cells: {
      columns: sessions.length, rows: lanes.length,
      box: (c, r) => [columns[c][0], tops[r], columns[c][1], LANE.height],
      at(x, y) {
        const c = underColumn(columns, x);
        if (c === null) return null;
        return [c, clamp(Math.floor((y - LANE.top) / pitch), 0, lanes.length - 1)];
      },
    },
  };
}

// What is said of a session: its place, its part, and its numbers in all lanes.
function sessionWords(held, session) {
  return [`${session.label}${session.role ? ` (${session.role})` : session.holds ? ` (holds ${session.holds})` : ''}`, session.time && String(session.time).slice(0, 16).replace('T', ' '), session.tokens && count(session.tokens[1] - session.tokens[0], 'token'), session.dropped ? 'dropped, not shown to the model' : session.shown === false && 'not shown to the model'].filter(Boolean).join(', ');
}
function stripWords(held, lanes, c, r) {
  const session = held.sessions[c];
  const ordered = [lanes[r], ...lanes.filter((lane) => lane !== lanes[r])];
  return `${sessionWords(held, session)}: ${ordered.filter((lane) => there(lane.values[c])).map((lane) => {
    const rest = bound(lane.baseline, c);
    return `${lane.label} ${unitWritten(lane.unit, lane.values[c])}${there(rest) ? ` (${lane.baseline_about ? 'baseline' : 'control'} ${unitWritten(lane.unit, rest)})` : ''}`;
  }).join(' · ') || 'no numbers'}`;
}
// Masses and effects of several sessions add up; densities and norms do not.
function chosenWords(held) {
  const chosen = chosenSessions(held);
  if (!chosen.length) return null;
  const places = chosen.map((session) => held.sessions.indexOf(session));
  const parts = lanesOf(held).filter((lane) => ['share', 'nats', 'logit'].includes(lane.unit) && lane.group !== 'control').map((lane) => {
    const numbers = places.map((i) => lane.values[i]).filter(there);
    return numbers.length ? `${laneName(lane)} ${unitWritten(lane.unit, sum(numbers))}` : null;
  }).filter(Boolean);
  return `${chosen.map((session) => session.label).join(' + ')}${chosen.length > 1 ? ', summed' : ''}: ${parts.join(' · ')}`;
}

function stripPart(held) {
  const sessions = held.sessions ?? [];
  if (!sessions.length) return null;
  if (!lanesOf(held).length) return make('section.card', { 'aria-label': 'History' }, make('h3', { text: 'History' }), make('p.quiet', { text: `${sessions.length} ${segments(held)}; nothing was measured of them.` }), missingOf(held, 'attention', 'causes', 'effect'));
  const picture = pictured({
    id: 'strip', title: 'History', hint: 'A column a session. Point at one, or move with the arrow keys; a click or Enter chooses it, with Shift or Space several, which are summed.',
    note: shownLanes(held).some((lane) => there(lane.baseline)) ? `Dashed: ${unique(shownLanes(held).filter((lane) => there(lane.baseline)).map((lane) => `${lane.label}, ${lane.baseline_about ?? 'the effect of random text of the session’s length'}`)).join('; ')}.${shownLanes(held).some((lane) => there(lane.low) && !Array.isArray(lane.low)) ? ' Grey behind a lane: the middle 95 % of the effects of random stretches.' : ''}` : null,
    draw: (width) => drawStrip(held, shownLanes(held), sessions, width),
    words: (c, r) => stripWords(held, shownLanes(held), c, r),
    rest: () => chosenWords(held),
    pick: (c, _, more) => chooseSession(sessions[c].label, more),
    table: () => numbersOf(held, lanesOf(held)),
    tools: [make('label', {}, 'Axis ', select([['', 'by number'], ['tokens', 'by tokens']], one('axis'), (value) => go({ axis: value || null }))), lanesButton(held)],
    take: { name: () => `${held.case}-${held.probe}-history`, python: () => pythonOf(held), command: () => commandOf(held) },
  });
  const holder = make('div.chosen');
  const lay = () => {
    const chosen = all('session');
    holder.hidden = chosen.length === 0;
    holder.replaceChildren(make('span.quiet', { text: 'Chosen:' }), ...chosen.map((label) => button(`${label} ×`, () => chooseSession(label, true), { 'aria-label': `Deselect ${label}` })), make('span', { text: chosenWords(held)?.split(': ').slice(1).join(': ') ?? '' }));
  };
  lay();
  current.redo.push(lay);
  return make('section.card', { 'aria-label': 'History' }, picture.root, holder, missingOf(held, 'effect', 'carrier', 'attention'));
}
function numbersOf(held, lanes) {
  const withRest = lanes.flatMap((lane) => [[lane.key, lane.unit, (i) => lane.values[i]], ...(there(lane.baseline) ? [[`${lane.key} baseline`, lane.unit, (i) => bound(lane.baseline, i)]] : []),
    ...(there(lane.low) ? [[`${lane.key} low`, lane.unit, (i) => bound(lane.low, i)], [`${lane.key} high`, lane.unit, (i) => bound(lane.high, i)]] : [])]);
  return {
    head: ['session', 'role', 'tokens', ...withRest.map(([key]) => key)], form: [(x) => x, (x) => x || NONE, plain, ...withRest.map(([, unit]) => (x) => unitWritten(unit, x))],
    rows: held.sessions.map((session, i) => [session.label, session.role ?? '', session.tokens ? session.tokens[1] - session.tokens[0] : null, ...withRest.map(([, , value]) => value(i))]),
  };
}
function select(options, value, act, attributes = {}) {
  const node = make('select', { onchange: () => act(node.value), ...attributes }, ...options.map(([key, text]) => new Option(text, key, false, key === value)));
  node.value = value;
  return node;
}
// Which lanes are shown.
function lanesButton(held) {
  const open = button('Lanes', () => {
    const now = new Set(shownLanes(held).map((lane) => lane.key));
    const box = make('dialog', { 'aria-label': 'Lanes' });
    const done = () => { box.close(); box.remove(); open.focus(); };
    box.append(make('h2', { text: 'Lanes' }), ...lanesOf(held).map((lane) => make('p', {}, make('label', {}, make('input', { type: 'checkbox', checked: now.has(lane.key), value: lane.key }), ` ${laneName(lane)} `, make('span.quiet', { text: lane.about ?? '' })))),
      make('div.line', {}, button('Show these', () => { go({ lane: [...box.querySelectorAll('input:checked')].map((input) => input.value) }); done(); }, { class: 'main' }), button('As at first', () => { go({ lane: null }); done(); }), button('Close', done)));
    box.addEventListener('cancel', (event) => { event.preventDefault(); done(); });
    document.body.append(box);
    box.showModal();
  }, { 'aria-haspopup': 'dialog' });
  return open;
}
