'use strict';
// The page at /: documents and a question go to /v1/chat/completions; each token of the answer comes with its attention, over
// the documents and their sentences, and each sentence with what it rests on. A document that is unticked is sent too, and hidden from
// the question on, so that what was read of the documents is read once. Texts are only ever set as text. The key is in a variable and nowhere else.
(() => {
  const at = (id) => document.getElementById(id);
  const SENTENCES = 240;            // Most pieces that documents are cut into.
  const SHORTEST = 12;              // Characters of a piece; shorter ones join the next.
  const KEPT = 64 << 20;            // Most bytes of attention that are held with heads apart.
  const LISTED = 6;

  let key = null;
  let model = null;                 // Its entry of /v1/models.
  let asked = null;                 // What the answer under way or last seen was asked.
  let pointed = null;               // The token that is pointed at; null for none.
  let held = null;                  // The one that was chosen to stay.
  let whole = null;                 // The last answer with all documents: its question and its text.

  const make = (name, kind, text) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const percent = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;
  const times = (x) => `${x < 0.0995 ? x.toFixed(3) : x < 0.995 ? x.toFixed(2) : x < 9.95 ? x.toFixed(1) : Math.round(x)} ×`;

  // Errors are shown in the server's words.
  const fail = (text) => { at('error-text').textContent = text; at('error').hidden = !text; };
  at('error-close').onclick = () => fail('');

  class Refused extends Error {
    constructor(status, error) { super(error?.message ?? `the server answered with status ${status}`); this.status = status; this.param = error?.param; }
  }
  async function call(path, options = {}) {
    const headers = { 'Content-Type': 'application/json' };
    if (key) headers.Authorization = `Bearer ${key}`;
    let reply;
    try {
      reply = await fetch(path, { ...options, headers, cache: 'no-store' });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Error(`the server at ${location.origin} cannot be reached; is it still running?`);
    }
    if (reply.ok) return reply;
    throw new Refused(reply.status, (await reply.json().catch(() => null))?.error);
  }

  // 1. The model, and the key where one is needed.
  async function open() {
    at('model').textContent = 'asking for the model…';
    try {
      const { data } = await (await call('/v1/models')).json();
      model = data.find((one) => one.palimpsest?.attention);
      if (!model) throw new Error('the server has no model that answers');
    } catch (error) {
      at('model').textContent = '';
      at('key-form').hidden = error.status !== 401;
      if (error.status !== 401) fail(error.message);
      else { if (key) fail(error.message); key = null; at('key').focus(); }
      return;
    }
    fail('');
    at('key-form').hidden = true;
    const { context, attention } = model.palimpsest;
    at('model').textContent = `${model.id} · ${attention.layers.length} layers of attention, ${attention.heads} heads · ${context} tokens of context`;
    at('ask').disabled = false;
    options(at('layer'), 'mean of all', attention.layers);
    options(at('head'), 'mean of all', Array.from({ length: attention.heads }, (_, head) => head));
  }
  const options = (select, all, numbers) => select.replaceChildren(new Option(all, ''), ...numbers.map((n, i) => new Option(n, i)));
  at('key-form').onsubmit = (event) => {
    event.preventDefault();
    key = at('key').value;
    at('key').value = '';
    open();
  };

  // 2. Documents.
  function add(name, text) {
    const item = at('document').content.firstElementChild.cloneNode(true);
    const [title, remove] = [item.querySelector('.name'), item.querySelector('.remove')];
    title.value = name;
    item.querySelector('.text').value = text;
    const used = item.querySelector('.in');
    const called = () => {
      remove.setAttribute('aria-label', `Remove ${title.value || 'the document'}`);
      used.setAttribute('aria-label', `Let the answer see ${title.value || 'the document'}`);
    };
    used.onchange = () => {
      item.classList.toggle('out', !used.checked);
      if (document.body.classList.contains('reading')) again(null);
    };
    title.oninput = called;
    called();
    remove.onclick = () => {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      item.remove();
      count();
      (next?.querySelector('.remove') ?? at('add')).focus();
    };
    at('list').append(item);
    count();
    return item;
  }
  const count = () => { at('no-documents').hidden = at('list').children.length > 0; };
  at('add').onclick = () => {
    turn(false);
    add(`Document ${at('list').children.length + 1}`, '').querySelector('.text').focus();
  };
  at('turn').onclick = () => turn(!document.body.classList.contains('reading'));

  // Between writing documents and reading them shaded.
  function turn(reading) {
    document.body.classList.toggle('reading', reading);
    at('turn').textContent = reading ? 'Edit' : 'Back to the shading';
    at('turn').hidden = !reading && !(asked && asked.tokens.length);
    for (const item of at('list').children) {
      const read = asked?.documents.find((one) => one.item === item);
      item.querySelector('.text').hidden = reading;
      item.querySelector('.read').hidden = !reading;
      item.querySelector('.share').hidden = !reading;
      item.querySelector('.remove').hidden = reading;
      item.querySelector('.name').disabled = reading;
      item.hidden = reading && !read;
    }
    if (reading && asked) for (const one of asked.documents) one.item.querySelector('.name').value = one.name;
  }

  // Where sentences end. White space before a sentence is its own, since that is where its first token begins.
  function pieces(text, shortest) {
    let ends;
    if (Intl.Segmenter) {
      const parts = new Intl.Segmenter(undefined, { granularity: 'sentence' }).segment(text);
      ends = Array.from(parts, (part) => part.index + part.segment.trimEnd().length);
    } else {
      ends = Array.from(text.matchAll(/[.!?。！？]+["'”’)]*(?=\s|$)|(?=\n)/gu), (found) => found.index + found[0].length);
    }
    const cut = [];
    let start = 0;
    for (const end of ends) {
      if (end - start >= shortest) { cut.push([start, end]); start = end; }
    }
    if (start < text.length) {
      if (cut.length && text.length - start < SHORTEST) cut[cut.length - 1][1] = text.length;
      else cut.push([start, text.length]);
    }
    return cut;
  }
  const characters = (text) => { let n = 0; for (const _ of text) n += 1; return n; };

  // 3. The request.
  function compose(given) {
    const documents = [];
    for (const item of at('list').children) {
      const name = item.querySelector('.name').value.trim().toWellFormed();
      const text = item.querySelector('.text').value.trim().toWellFormed();
      if (text) documents.push({ item, name, text, seen: item.querySelector('.in').checked });
    }
    const length = documents.reduce((sum, one) => sum + one.text.length, 0);
    const shortest = Math.max(SHORTEST, Math.ceil(length / SENTENCES));
    const [content, spans] = [[], []];
    documents.forEach((one, part) => {
      const head = one.name ? `${one.name}:\n` : '';
      const before = characters(head);
      content.push({ type: 'text', text: `${head}${one.text}\n\n`, span: `document ${part}` });
      const span = (label, start, end) => {
        const from = before + characters(one.text.slice(0, start));
        spans.push({ label, message: 0, part, start: from, end: from + characters(one.text.slice(start, end)) });
      };
      span(`text ${part}`, 0, one.text.length);
      one.column = spans.length - 1;
      one.pieces = pieces(one.text, shortest).map(([start, end], i) => {
        span(`sentence ${part}.${i}`, start, end);
        return { document: one, text: one.text.slice(start, end), column: spans.length - 1 };
      });
    });
    const question = at('question').value.trim().toWellFormed();
    content.push({ type: 'text', text: question, span: 'question' });
    const most = at('most').valueAsNumber;
    const { layers, heads } = model.palimpsest.attention;
    const apart = 4 * layers.length * heads * (spans.length + 6) * most <= KEPT;
    const body = {
      model: model.id, messages: [{ role: 'user', content }], temperature: at('temperature').valueAsNumber,
      max_completion_tokens: most, stream: true, stream_options: { include_usage: true },
      palimpsest: { rows: ['each'], heads: apart ? 'all' : 'mean', encoding: 'safetensors', spans, token_ids: true },
    };
    const labels = (seen) => documents.flatMap((one, part) => (one.seen === seen ? [`document ${part}`] : []));
    const [seen, unseen] = [labels(true), labels(false)];
    if (given) body.palimpsest.answer = given;
    if (at('why').checked && seen.length > 0) body.palimpsest.cite = { spans: seen, from: 'question' };
    // A score is held against a question with nothing hidden.
    if (unseen.length > 0) body.palimpsest.knockouts = unseen.map((label) => `question->${label}`);
    else if (documents.length > 0) body.palimpsest.score = { documents: documents.map((_, part) => `document ${part}`), question: 'question' };
    return { documents, question, spans: spans.length, apart, body, tokens: [], waiting: [], reply: null, state: 'reading', since: performance.now() };
  }

  at('ask-form').onsubmit = (event) => {
    event.preventDefault();
    if (model && !asked?.abort) ask(null, false);
  };
  // The same once more in the place of the answer that is there: with other documents, or with its reasons.
  function again(given) {
    if (model && asked && at('ask-form').checkValidity()) ask(given, true);
  }
  at('why').onchange = () => {
    if (!at('why').checked) { why(); return; }
    if (asked?.state !== 'whole') return;
    // The answer that is there is given, so that its reasons are of it; a thought before it cannot be.
    const { token_ids: ids, thought_tokens: thought } = asked.reply ?? {};
    const asks = ({ body }) => JSON.stringify([body.messages, body.palimpsest.knockouts]);
    again(ids?.length && !thought && asks(compose(null)) === asks(asked) ? ids : null);
  };

  async function ask(given, inPlace) {
    fail('');
    const before = asked;
    const mine = compose(given);
    before?.abort?.abort();
    asked = mine;
    mine.abort = new AbortController();
    [pointed, held] = [null, null];
    at('ask').disabled = true;
    at('stop').hidden = false;
    at('answered').hidden = false;
    mine.stale = inPlace && at('answer').childElementCount > 0;
    at('answer').inert = mine.stale;
    if (!mine.stale) at('answer').replaceChildren();
    at('thought-text').textContent = '';
    at('thought').hidden = true;
    lay();
    turn(true);
    // Where there is one column, the documents are above the answer.
    if (!inPlace && matchMedia('(max-width: 48rem)').matches) scrollTo(0, 0);
    pick();
    why();
    show();
    say('reading the documents…');
    try {
      await stream(mine);
      if (asked !== mine) return;
      mine.state = 'whole';
      const { usage } = mine;
      const seconds = ((performance.now() - mine.since) / 1000).toFixed(1);
      const cached = usage?.prompt_tokens_details?.cached_tokens;
      say(mine.tokens.length === 0 ? 'the model ended its answer without a word' : `${usage.completion_tokens} tokens in ${seconds} s, after ${usage.prompt_tokens} of prompt${cached ? `, ${cached} of them read before` : ''}${mine.reason === 'length' ? '; cut at the limit' : ''}`);
      if (mine.tokens.length === 0) fresh(mine);
      compare(mine);
      at('spoken').textContent = `The answer: ${at('answer').textContent}`;
    } catch (error) {
      if (asked !== mine) return;
      mine.state = 'broken';
      fresh(mine);
      if (error.name === 'AbortError') say('stopped');
      else { say(''); fail(error.message); if (error.status === 401) { key = null; open(); } }
      if (mine.tokens.length === 0) { at('answered').hidden = true; turn(false); }
    }
    mine.abort = null;
    at('ask').disabled = !model;
    at('stop').hidden = true;
    rest();
    if (scores()) document.querySelector('[value=score]').checked = true;
    pick();
    why();
    show();
  }
  // The tokens of the answer before go when those of the new one come.
  function fresh(one) {
    if (!one.stale) return;
    one.stale = false;
    at('answer').replaceChildren();
    at('answer').inert = false;
  }
  // What the answer was while it saw all documents.
  function compare(one) {
    const text = at('answer').textContent;
    const out = one.documents.filter((each) => !each.seen);
    const known = whole?.question === one.question ? whole.text : null;
    if (out.length === 0) whole = { question: one.question, text };
    at('before').hidden = out.length === 0 || known === null;
    at('before').textContent = known === text ? 'The same answer as with all documents.' : `With all documents: ${known}`;
  }
  at('stop').onclick = () => asked?.abort?.abort();
  const say = (text) => { at('status').textContent = text; };

  // A sentence that holds no token of its own is left out, and the rest asked again.
  async function send(one) {
    for (;;) {
      try {
        return await call('/v1/chat/completions', { method: 'POST', body: JSON.stringify(one.body), signal: one.abort.signal });
      } catch (error) {
        // Where no head sees all documents, there is no score.
        if (error.status === 400 && error.param?.startsWith('palimpsest.score')) { delete one.body.palimpsest.score; continue; }
        const named = /^palimpsest\.spans\[(\d+)\]$/.exec(error.param ?? '');
        if (error.status !== 400 || !named) throw error;
        const out = Number(named[1]);
        one.body.palimpsest.spans.splice(out, 1);
        one.spans -= 1;
        const after = (column) => (column === out ? null : column > out ? column - 1 : column);
        for (const cut of one.documents.flatMap((each) => [each, ...each.pieces])) {
          if (cut.column !== null) cut.column = after(cut.column);
        }
      }
    }
  }

  async function stream(one) {
    const reader = (await send(one)).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const frames = (rest + value).split('\n\n');
      rest = frames.pop();
      for (const frame of frames) {
        const data = frame.replace(/^data: /, '');
        if (data !== '[DONE]') take(one, JSON.parse(data));
      }
    }
    if (!one.reply) throw new Error('the server ended the answer in its middle');
  }

  function take(one, frame) {
    if (asked !== one) return;
    if (frame.error) throw new Refused(0, frame.error);
    if (frame.usage) one.usage = frame.usage;
    const choice = frame.choices[0];
    if (!choice) return;
    const told = choice.palimpsest;
    if (told?.data) {
      const { each } = tensors(told.data);
      if (each) for (let t = 0; t < each.shape[0]; t += 1) {
        const size = each.values.length / each.shape[0];
        one.shape = each.shape;
        one.waiting.push({ row: one.rows = (one.rows ?? 0) + 1, values: each.values.slice(t * size, (t + 1) * size) });
      }
    }
    if (choice.delta.reasoning_content) {
      at('thought').hidden = false;
      at('thought-text').textContent += choice.delta.reasoning_content;
    }
    if (choice.delta.content) word(one, choice.delta.content);
    if (choice.finish_reason) {
      one.reply = told;
      one.reason = choice.finish_reason;
    }
  }

  // The tensors of a safetensors file: an eight-byte length, a header of JSON, the numbers.
  function tensors(data) {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    const found = {};
    for (const [name, { data_offsets: [start, end], shape }] of Object.entries(header)) {
      if (name !== '__metadata__') found[name] = { shape, values: new Float32Array(bytes.buffer.slice(8 + length + start, 8 + length + end)) };
    }
    return found;
  }

  // 4. Tokens. One that adds no text, as the first part of a character does, is shown with the next.
  function word(one, text) {
    fresh(one);
    const last = one.tokens.at(-1);
    if (one.waiting.length === 0 && last) {
      last.text += text;
      last.button.textContent = last.text;
      return;
    }
    const token = { text, rows: one.waiting, button: make('span', 'token', text) };
    one.waiting = [];
    const index = one.tokens.push(token) - 1;
    const { button } = token;
    button.setAttribute('role', 'button');
    button.setAttribute('aria-pressed', 'false');
    button.tabIndex = index === 0 ? 0 : -1;
    button.onpointerenter = (event) => { if (event.pointerType === 'mouse') point(index); };
    button.onpointerleave = (event) => { if (event.pointerType === 'mouse') point(null); };
    button.onfocus = () => { if (button.matches(':focus-visible')) point(index, true); };
    button.onblur = () => point(null);
    button.onclick = () => hold(held === index ? null : index);
    at('answer').append(button);
    if (one.state === 'reading') { one.state = 'writing'; say('writing…'); }
    if (!one.painting) {
      one.painting = true;
      requestAnimationFrame(() => { one.painting = false; if (asked === one) show(); });
    }
  }
  // What came after the last text belongs to it.
  const rest = () => { const last = asked.tokens.at(-1); if (last && asked.waiting.length) { last.rows = last.rows.concat(asked.waiting); asked.waiting = []; } };

  function point(index, aloud = false) {
    if (pointed === index) return;
    pointed = index;
    show(aloud);
  }
  function hold(index) {
    held = index;
    asked.tokens.forEach(({ button }, i) => { button.classList.toggle('held', i === held); button.setAttribute('aria-pressed', String(i === held)); });
    show(true);
  }
  at('answer').onkeydown = (event) => {
    const now = asked?.tokens.findIndex(({ button }) => button === document.activeElement) ?? -1;
    if (now < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: asked.tokens.length - 1, ArrowDown: line(now, 1), ArrowUp: line(now, -1) }[event.key];
    if (event.key === 'Escape') { pointed = null; hold(null); }
    else if (event.key === 'Enter' || event.key === ' ') hold(held === now ? null : now);
    else if (to !== undefined && asked.tokens[to]) {
      asked.tokens[now].button.tabIndex = -1;
      const { button } = asked.tokens[to];
      button.tabIndex = 0;
      button.focus({ focusVisible: true });
      point(to, true);
    } else if (to === undefined) return;
    event.preventDefault();
  };
  // The nearest token of the line above or below.
  function line(now, step) {
    const places = asked.tokens.map(({ button }) => button.getClientRects()[0]);
    const here = places[now];
    const away = (place) => (place && here ? (place.top - here.top) * step : 0);
    const next = Math.min(...places.map(away).filter((d) => d > here.height / 2));
    let best = now;
    let least = Infinity;
    places.forEach((place, i) => {
      const off = place && here ? Math.abs(place.left - here.left) : Infinity;
      if (Math.abs(away(place) - next) < 2 && off < least) [best, least] = [i, off];
    });
    return best;
  }

  // 5. Masses. A token's row, over the chosen layers and heads: a number a column.
  const chosen = (select, all) => (select.value === '' ? Array.from({ length: all }, (_, i) => i) : [Number(select.value)]);
  function masses(token) {
    const { shape } = asked;
    const [layers, columns] = [shape[1], shape.at(-1)];
    const heads = shape.length === 4 ? shape[2] : 1;
    const [some, few] = [chosen(at('layer'), layers), shape.length === 4 ? chosen(at('head'), heads) : [0]];
    const sums = new Float64Array(columns);
    for (const { values } of token.rows) for (const l of some) for (const h of few) {
      const from = (l * heads + h) * columns;
      for (let c = 0; c < columns; c += 1) sums[c] += values[from + c];
    }
    const n = token.rows.length * some.length * few.length || 1;
    return sums.map((x) => x / n);
  }
  // What uniform attention would pay; known when the answer is whole.
  function shares(token) {
    const { spans, thought_tokens: thought = 0 } = asked.reply;
    const { windows } = model.palimpsest.attention;
    const prompt = spans.find((span) => span.label === 'generated').start;
    const some = chosen(at('layer'), windows.length);
    const sums = new Float64Array(spans.length);
    for (const { row } of token.rows) for (const l of some) {
      const end = prompt + thought + row - 1;
      const first = windows[l] === null ? 0 : Math.max(0, end - windows[l]);
      spans.forEach((span, c) => { sums[c] += Math.max(0, Math.min(span.end, end) - Math.max(span.start, first)) / (end - first); });
    }
    const n = token.rows.length * some.length || 1;
    return sums.map((x) => x / n);
  }
  const mean = (tokens, of) => {
    const all = tokens.map(of);
    return all[0].map((_, c) => all.reduce((sum, one) => sum + one[c], 0) / all.length);
  };

  // What the server says of each document: an entry for the answer, and one for the question.
  const scores = () => (asked?.reply?.score?.answer.length ? asked.reply.score : null);
  const entry = (list, one) => list.find((each) => each.label === `document ${asked.documents.indexOf(one)}`);
  const signed = (x) => `${x < 0 ? '−' : '+'}${percent(Math.abs(x))}`;
  const rank = (n) => `${n}${{ 1: 'st', 2: 'nd', 3: 'rd' }[n % 100 > 10 && n % 100 < 14 ? 0 : n % 10] ?? 'th'}`;
  function tell(score) {
    at('rests').hidden = !score;
    if (!score) return;
    const all = { retrieval: 'the heads that retrieve', all: 'all heads' }[score.heads] ?? 'the heads that were named';
    at('score-heads').textContent = `Mass beyond what a question that asks nothing draws, over ${all}.`;
    const lines = asked.documents.map((one) => [one, entry(score.answer, one), entry(score.question, one)]);
    lines.sort(([, a], [, b]) => a.rank - b.rank);
    at('scores').replaceChildren(...lines.map(([one, answer, question]) => {
      const line = make('tr', answer.rank === 1 ? 'first' : '');
      const cells = [one.name || 'without a name', signed(answer.score), answer.sure.toFixed(2), signed(question.score), question.sure.toFixed(2)];
      line.append(...cells.map((cell) => make('td', '', cell)));
      return line;
    }));
  }

  // Citations: of each sentence the documents that it attended to, and those that it needs, with the nearest to it where there is none.
  function why() {
    const cite = at('why').checked && asked?.state === 'whole' ? asked.reply?.cite : null;
    at('whys').hidden = !cite;
    if (!cite) return;
    const nats = (x) => `${x < 0 ? '−' : ''}${Math.abs(x).toFixed(2)} nats`;
    const kinds = [['attention', 'attended', 'density', times], ['cause', 'caused', 'log_p_drop', nats]];
    at('why-list').replaceChildren(...cite.sentences.map((sentence) => {
      const [item, list] = [make('li'), make('dl')];
      item.append(make('p', '', sentence.text), list);
      for (const [kind, name, field, told] of kinds) {
        const line = make('dd');
        const sorted = sentence.spans.filter((span) => span[field] !== null).sort((a, b) => b[field] - a[field]);
        const cited = sorted.filter((span) => span.cited.includes(kind));
        line.append(...cited.map((span) => {
          const one = asked.documents[Number(span.label.slice('document '.length))];
          const button = make('button', kind, `${one.name || 'without a name'} ${told(span[field])}`);
          button.type = 'button';
          button.setAttribute('aria-label', `${name}: ${button.textContent}; show the document`);
          button.onclick = () => {
            turn(true);
            document.querySelectorAll('.found').forEach((each) => each.classList.remove('found'));
            one.item.classList.add('found');
            one.item.scrollIntoView({ block: 'center' });
          };
          return button;
        }));
        if (cited.length === 0) line.append(make('span', 'quiet', 'nothing above chance'));
        list.append(make('dt', '', name), line);
      }
      return item;
    }));
  }

  function pick() {
    tell(scores());
    const by = document.querySelector('[value=score]');
    by.disabled = !scores();
    if (by.disabled && by.checked) document.querySelector('[value=mass]').checked = true;
    const can = !asked || asked.apart;
    at('head').disabled = !can;
    if (!can) at('head').value = '';
    const density = document.querySelector('[value=density]');
    density.disabled = !asked?.reply;
    if (density.disabled && density.checked) document.querySelector('[value=mass]').checked = true;
    at('picker-note').textContent = 'Heads are told apart for shorter documents or answers.';
    at('picker-note').hidden = can;
  }
  at('pickers').onchange = (event) => {
    // A layer or a head has masses, and no score.
    const score = document.querySelector('[value=score]');
    if (event.target.localName === 'select' && score.checked) document.querySelector('[value=mass]').checked = true;
    show(true);
  };

  // Documents become sentences to shade.
  function lay() {
    for (const one of asked.documents) {
      const read = one.item.querySelector('.read');
      read.replaceChildren(...one.pieces.map((piece) => { piece.shown = make('span', 'sentence', piece.text); return piece.shown; }));
      one.item.querySelector('.share').textContent = '';
    }
  }

  function show(aloud = false) {
    if (!asked) return;
    const { tokens, reply } = asked;
    const live = asked.state === 'reading' || asked.state === 'writing';
    const index = pointed ?? held ?? (live ? tokens.length - 1 : null);
    tokens.forEach(({ button }, i) => button.classList.toggle('shown', i === index));
    const some = (index === null ? tokens : [tokens[index]]).filter((token) => token?.rows.length);
    at('looked').hidden = some.length === 0;
    if (some.length === 0) return;
    const mass = mean(some, masses);
    const share = reply?.spans ? mean(some, shares) : null;
    const dense = share && document.querySelector('[value=density]').checked;
    const first = mass.length - asked.spans;
    const value = (column) => (column === null ? 0 : dense ? mass[first + column] / (share[first + column] || Infinity) : mass[first + column]);
    const told = dense ? times : percent;
    const all = asked.documents.flatMap((one) => one.pieces);
    const most = all.reduce((top, piece) => Math.max(top, value(piece.column)), 0);
    for (const piece of all) {
      const x = value(piece.column);
      piece.shown.style.setProperty('--depth', most > 0 ? x / most : 0);
      piece.shown.title = told(x);
    }
    for (const one of asked.documents) one.item.querySelector('.share').textContent = told(value(one.column));
    // A score is of the whole answer and of whole documents.
    const score = index === null && document.querySelector('[value=score]').checked ? scores() : null;
    at('legend').hidden = Boolean(score);
    if (score) {
      const best = Math.max(...score.answer.map((one) => one.score));
      for (const one of asked.documents) {
        const { score: x, rank: place } = entry(score.answer, one);
        for (const piece of one.pieces) {
          piece.shown.style.setProperty('--depth', best > 0 ? Math.max(0, x) / best : 0);
          piece.shown.title = `score ${signed(x)}`;
        }
        one.item.querySelector('.share').textContent = `${rank(place)}, ${signed(x)}`;
      }
    }
    at('legend-most').textContent = most > 0 ? told(most) : '';
    const what = index === null ? 'The whole answer' : `“${tokens[index].text.trim() || '␣'}”`;
    at('looked-title').textContent = `${what} looked at`;
    parts(mass, share, first);
    const top = all.filter((piece) => piece.column !== null).sort((a, b) => value(b.column) - value(a.column)).slice(0, LISTED);
    at('sentences').replaceChildren(...top.map((piece) => row(piece, told(value(piece.column)))));
    if (aloud && top.length) at('spoken').textContent = `${what}: ${top.slice(0, 2).map((piece) => `${told(value(piece.column))} to ${piece.text.trim().slice(0, 80)}`).join('; ')}`;
  }
  // Everything that rows attend to, so that nothing is hidden: documents, question, the chat's own text, the answer so far.
  function parts(mass, share, first) {
    const names = { documents: 'documents', question: 'question', template: 'chat template', generated: 'the answer so far' };
    const sums = {};
    const put = (name, m, s) => { const sum = (sums[name] ??= [0, 0]); sum[0] += m; sum[1] += s; };
    if (share) asked.reply.spans.forEach((span, c) => { if (!span.overlay) put(span.label.startsWith('document ') ? 'documents' : span.label.replace(/\[.*/, ''), mass[c], share[c]); });
    else for (const one of asked.documents) if (one.column !== null) put('documents', mass[first + one.column], NaN);
    const sum = Object.values(sums).reduce((all, [m]) => all + m, 0);
    if (share && sum < 0.999) put('sink', 1 - sum, NaN);
    at('parts').replaceChildren(...Object.entries(sums).map(([name, [m, s]]) => {
      const line = make('tr');
      line.append(make('td', '', names[name] ?? (name === 'sink' ? 'attention sinks' : name)), make('td', '', percent(m)), make('td', '', s > 0 ? times(m / s) : ''));
      return line;
    }));
  }
  function row(piece, told) {
    const [item, button] = [make('li'), make('button')];
    button.type = 'button';
    button.append(make('span', '', told), make('span', '', piece.text.trim()));
    button.title = `${piece.document.name}: show it in the document`;
    button.onclick = () => {
      turn(true);
      document.querySelectorAll('.found').forEach((one) => one.classList.remove('found'));
      piece.shown.classList.add('found');
      piece.shown.scrollIntoView({ block: 'center' });
    };
    item.append(button);
    return item;
  }

  // 6. Something to ask at once.
  [
    ['Notice, March', 'The weekly market is held on Thursday, in front of the town hall. Stalls open at eight. Parking behind the church is free on that day.'],
    ['Library', 'The library closes at eight on weekdays and at one on Saturdays. Books can be returned at any hour through the flap beside the door.'],
    ['Notice, May', 'From May on the weekly market is held on Sunday, because of the building site at the town hall. It has moved to the meadow by the river.'],
  ].forEach(([name, text]) => add(name, text));
  at('question').value = 'On which day is the weekly market held in June?';
  open();
})();
