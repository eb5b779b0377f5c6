// The texts: those with a part in the question side by side, the others folded; shaded by what the chosen rows read. Of a run the store keeps
// masses by session; with a model at hand single tokens can be looked at.

const FOLDED = 300;                // Texts that are listed before the rest is asked for.
const looks = new Map();           // What the model told of single tokens, by answer and rows.

const shadeMasses = (held) => {
  const viewer = held.rows?.[held.viewer]?.label ?? 'query';
  const names = chosenRows(held);
  const lanes = names.map((name) => (held.strip ?? []).find((lane) => lane.key === `mass.${name}`)).filter(Boolean);
  const used = lanes.length ? lanes : [(held.strip ?? []).find((lane) => lane.key === `mass.${viewer}`)].filter(Boolean);
  if (!used.length) return null;
  const weights = used.length === names.length ? rowWeights(held, names) : used.map(() => 1 / used.length);
  return held.sessions.map((_, i) => sum(used.map((lane, n) => (lane.values[i] ?? 0) * weights[n])));
};

function textsPart(held) {
  const sessions = held.sessions ?? [];
  if (!sessions.length) return null;
  const section = make('section.card', { 'aria-label': 'Texts' });
  const beside = make('div.two');
  const others = make('div.others-list');
  const note = make('p.quiet');
  const shader = make('div.line.tools');
  section.append(make('h3', { text: 'Texts' }), headingsNote(sessions), shader, note, beside, others);
  const masses = () => shadeMasses(held);
  const front = () => {
    const chosen = chosenSessions(held);
    const parts = sessions.filter((session) => session.role || session.holds);
    if (parts.length || chosen.length) return unique([...parts, ...chosen]);
    const now = masses();
    return now ? sessions.map((session, i) => [session, now[i]]).filter(([session]) => session.turns).toSorted((a, b) => b[1] - a[1]).slice(0, 2).map(([session]) => session) : sessions.slice(0, 2);
  };
  let whole = false;
  let last = null;
  const lay = async () => {
    const wanted = JSON.stringify([all('session'), chosenRows(held), one('look'), all('token')]);
    if (wanted === last) return;
    last = wanted;
    layShader(shader, held);
    const look = await lookNow(held, note);
    if (current.held !== held || wanted !== last) return;
    const now = look?.tokens ? sessions.map((_, i) => sum(look.tokens.filter((token) => token.session === i).map((token) => token.mass))) : masses();
    const most = now ? Math.max(...now) : 0;
    const shown = front();
    const parts = shown.some((session) => session.role || session.holds);
    note.textContent = look?.words ?? (now ? `${parts ? 'The evidence side by side' : 'The two with most attention'}. A text is shaded as a whole by its share of the attention of ${chosenRows(held).join(' + ')}: the folder holds masses by ${held.condition.segment ?? 'session'}, not by token.${data.model?.tokens ? ' Shade by token asks the model.' : ''}` : 'No attention was stored, so that nothing is shaded.');
    const opened = new Set([...others.querySelectorAll('details[open]')].map((fold) => fold.dataset.fold));
    beside.replaceChildren(...shown.map((session) => sessionText(held, session, now, most, look)));
    const rest = sessions.map((session, i) => [session, i]).filter(([session]) => !shown.includes(session));
    others.replaceChildren(...rest.slice(0, whole ? rest.length : FOLDED).map(([session, i]) => {
      const text = session.turns?.[0]?.content ?? '';
      const fold = make('details', { 'data-fold': session.label, ontoggle() { if (this.open && this.children.length === 1) this.append(sessionText(held, session, now, most, look)); } },
        make('summary', {}, make('span', { text: session.label }), session.time ? make('span.quiet', { text: String(session.time).slice(0, 10) }) : '', make('span.begin', { text: session.dropped ? 'dropped, not shown to the model' : shortened(text, 160) }), now ? make('span.share.shaded', { text: session.shown === false ? NONE : percent(now[i]) }) : ''));
      if (now) fold.querySelector('.share').style.setProperty('--depth', most ? (0.75 * now[i]) / most : 0);
      if (opened.has(session.label)) fold.open = true;
      return fold;
    }), rest.length > FOLDED && !whole ? button(`All ${rest.length.toLocaleString('en')}`, () => { whole = true; last = null; lay(); }) : '');
  };
  lay();
  current.redo.push(lay);
  return section;
}

// Said once, so that nobody takes the prompt's own numbers for the page's.
function headingsNote(sessions) {
  const session = sessions.find((each) => there(each.heading));
  return make('p.quiet', { id: 'numbering', text: session ? `Sessions are numbered from 0 by the history, as in all files and figures. Headings in the prompt's own text count from 1: ${session.label} stands there under “Session ${session.heading}”.` : '' });
}

function sessionText(held, session, masses, most, look) {
  const place = held.sessions.indexOf(session);
  const side = sideOf(held, session.role ?? session.holds);
  const mass = masses?.[place];
  const depth = there(mass) && most && !look ? 0.5 * (mass / most) : 0;
  const box = make(`article.session-text${side ? `.${side}` : ''}`, { 'aria-label': `Text of ${session.label}` },
    make('div.line', {}, make('strong', { text: session.label }), session.role ? make(`span.pill${side ? `.${side}` : ''}`, { text: session.role }) : '', session.holds && !session.role ? make('span.pill', { text: `holds ${session.holds}` }) : '',
      session.time ? make('span.quiet', { text: String(session.time).slice(0, 16).replace('T', ' ') }) : '', there(session.heading) ? make('span.quiet', { text: `“Session ${session.heading}” in the prompt` }) : '', make('span.fill'), there(mass) ? make('span.quiet', { text: percent(mass) }) : ''));
  if (unseen(session)) box.append(make('p.quiet', { text: session.dropped ? 'Dropped: the model did not see it.' : 'Not in the prompt: the model did not see it.' }));
  const tokens = look?.tokens?.filter((token) => token.session === place);
  if (tokens?.length) {
    const body = make('div.turn.body');
    for (const token of tokens) {
      const piece = make('span.shaded', { title: percent(token.mass) }, ...withBreaks(token.text));
      piece.style.setProperty('--depth', look.most ? Math.min(0.85, 0.85 * Math.sqrt(token.mass / look.most)) : 0);
      body.append(piece);
    }
    box.append(body);
    return box;
  }
  if (!session.turns) { if (!session.dropped) box.append(make('p.quiet', { text: 'The folder holds no text of it.' })); return box; }
  session.turns.forEach((turn, t) => {
    const marks = (session.evidence ?? []).filter((each) => each.turn === t && each.chars).map((each) => each.chars);
    // What the judge was told of the evidence stands word for word in the turn that says it.
    for (const { text, of } of session.role ? held.gold ?? [] : []) {
      const start = of === 'case' && text.trim().length > 12 ? turn.content.indexOf(text.trim()) : -1;
      if (start >= 0) marks.push([start, start + text.trim().length]);
    }
    marks.sort((a, b) => a[0] - b[0]);
    const body = make('span.body.shaded');
    body.style.setProperty('--depth', depth);
    let from = 0;
    for (const [start, end] of marks) {
      if (start < from) continue;
      body.append(turn.content.slice(from, start), make('mark', { text: turn.content.slice(start, end), title: 'evidence' }));
      from = end;
    }
    body.append(turn.content.slice(from));
    box.append(make('div.turn', {}, make('span.who', { text: turn.role }), body));
  });
  return box;
}

// By which the texts are shaded, where a model can tell more than the store.
function layShader(holder, held) {
  if (!data.model?.tokens || !data.model.ready) { holder.hidden = true; return; }
  const now = one('look');
  holder.replaceChildren(make('label', {}, 'Shade by ', select([['', 'session, as stored'], ['question', 'token: attention of the question'], ['answer', 'token: attention of the answer'], ...(all('token').length ? [['tokens', `token: attention of ${count(all('token').length, 'chosen token')}`]] : [])], now, (value) => go({ look: value || null, token: value === 'tokens' ? all('token') : null }))));
}

// Runs of numbers that follow each other, half-open.
function ranges(numbers) {
  const found = [];
  for (const n of numbers.toSorted((a, b) => a - b)) {
    const end = found.at(-1);
    if (end && end[1] === n) end[1] = n + 1; else found.push([n, n + 1]);
  }
  return found;
}
async function lookNow(held, note) {
  const look = one('look');
  if (!look || !data.model?.ready) return null;
  const row = current.row;
  const tokens = all('token').map(Number);
  if (look === 'tokens' && !tokens.length) return null;
  const froms = look === 'tokens' ? ranges(tokens).map((range) => ({ generated: range })) : [look];
  try {
    const parts = [];
    for (const from of froms) {
      const key = JSON.stringify([row, from]);
      if (!looks.has(key)) {
        note.textContent = 'asking the model…';
        const { id } = await api.ask({ row, look: { from } });
        looks.set(key, waitFor(id, (state) => { if (current.held === held) note.textContent = `asking the model… ${state.of ? `${state.done} of ${state.of}` : ''}`; }).then((done) => done.trial.look));
        looks.get(key).catch(() => looks.delete(key));
      }
      parts.push([await looks.get(key), from.generated ? from.generated[1] - from.generated[0] : 1]);
    }
    const whole = sum(parts.map(([, n]) => n));
    const merged = parts[0][0].tokens.map((token, i) => ({ ...token, mass: sum(parts.map(([part, n]) => (part.tokens[i]?.mass ?? 0) * n)) / whole }));
    const named = tokens.map((i) => `“${current.tokens?.[i]?.text?.trim() || i}”`);
    const words = `Shaded token by token by the attention of ${look === 'tokens' ? `${named.join(', ')} of the answer${tokens.length === 1 ? '' : ', the mean of them'}` : `the ${look}`}`;
    return { tokens: merged, most: Math.max(...merged.filter((token) => there(token.session)).map((token) => token.mass)), words: `${words} (mean over layers and heads).` };
  } catch (error) {
    return { words: `The model could not be asked: ${error.message}` };
  }
}
// A token's text; a line break has a sign, so that a token that is nothing else can be seen and chosen.
const withBreaks = (text) => text.split(/(?=\n)/).flatMap((line) => (line.startsWith('\n') ? [make('span.break', { 'aria-hidden': 'true', text: '↵' }), line] : [line]));
// The tokens of the answer as buttons, where they are known and can be looked at.
async function tokensInto(holder, held) {
  if (ALONE || !data.model?.tokens) return;
  const row = current.row ?? rowOf([runOf(held).id, held.case, held.probe, held.condition.name]);
  let got;
  try { got = await api.tokens(row); } catch { return; }
  const tokens = got.generated?.tokens;
  if (!tokens?.length || current.held !== held) return;
  current.tokens = tokens;
  const lay = () => {
    const now = new Set(all('token').map(Number));
    holder.classList.add('tokens');
    holder.setAttribute('role', 'group');
    holder.setAttribute('aria-label', 'Tokens of the answer: a press shades the texts by its attention, with Shift several');
    if (holder.children.length !== tokens.length) {
      // Not buttons, which a browser lays out as boxes: a line break in one would break no line of the answer.
      holder.replaceChildren(...tokens.map((token, i) => make('span', { role: 'button', tabIndex: i === 0 ? 0 : -1, onclick: (event) => chooseToken(i, event.shiftKey) }, ...withBreaks(token.text))));
      holder.addEventListener('keydown', (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const place = [...holder.children].indexOf(document.activeElement);
        if (event.key === ' ' || event.key === 'Enter') { event.preventDefault(); chooseToken(place, event.key === ' ' || event.shiftKey); return; }
        if (!by || place < 0) return;
        event.preventDefault();
        const next = holder.children[clamp(place + by, 0, tokens.length - 1)];
        document.activeElement.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
    }
    [...holder.children].forEach((child, i) => child.setAttribute('aria-pressed', String(now.has(i))));
  };
  lay();
  current.redo.push(lay);
}
function chooseToken(i, more) {
  const now = new Set(all('token').map(Number));
  if (more) { if (!now.delete(i)) now.add(i); } else if (now.size === 1 && now.has(i)) now.clear(); else { now.clear(); now.add(i); }
  go({ token: [...now], look: now.size ? 'tokens' : null });
}
