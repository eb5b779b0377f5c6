// Everything that is asked of the server, or of this very file where the page is one that works without: then replies stand in `#embedded`
// under the addresses that they would have had.

const embedded = (() => {
  const holder = document.getElementById('embedded');
  return holder ? JSON.parse(holder.textContent) : null;
})();
const ALONE = embedded !== null;
const NEEDS_SERVER = 'not in this file: palimpsest view DIR has it';

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}
async function call(path, options) {
  if (ALONE) {
    if (path in embedded.replies && !options) return embedded.replies[path];
    throw new Refused(404, NEEDS_SERVER);
  }
  let reply;
  try {
    reply = await fetch(path, { cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'the server cannot be reached; is `palimpsest view` still running?');
  }
  const body = await reply.json().catch(() => null);
  if (!reply.ok) throw new Refused(reply.status, body?.error?.message ?? `the server answered with status ${reply.status}`);
  return body;
}
const post = (path, body) => call(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

// Replies on one answer, until the folder changes; a few answers are kept, so that going back and forth costs nothing.
const KEPT = 8;
const replies = new Map();
function kept(path) {
  if (replies.has(path)) {
    const found = replies.get(path);
    replies.delete(path);
    replies.set(path, found);
    return found;
  }
  const asked = call(path);
  asked.catch(() => replies.delete(path));
  replies.set(path, asked);
  while (replies.size > KEPT * 4) replies.delete(replies.keys().next().value);
  return asked;
}

const api = {
  stamp: () => call('/api/stamp'),
  runs: () => call('/api/runs'),
  table: () => call('/api/table'),
  // For a phone its pictures are laid out anew: scaled down, their words would be too small to read.
  overviewOf: (run, phone = PHONE.matches) => `/api/overview?${new URLSearchParams(phone ? { run, screen: 'phone' } : { run })}`,
  overview(run) {
    const path = api.overviewOf(run);
    return call(ALONE && !(path in embedded.replies) ? api.overviewOf(run, false) : path);
  },
  async case(row) {
    const got = await kept(`/api/case?row=${row}`);
    // The band of a lane's baseline is drawn as bounds are.
    for (const lane of got.strip ?? []) if (there(lane.baseline_low)) [lane.low, lane.high] = [lane.baseline_low, lane.baseline_high];
    return got;
  },
  async layers(row) {
    const got = await kept(`/api/layers?row=${row}`);
    if (!got.mass && got.mass8) Object.assign(got, { mass: unpacked(got.mass8, got), share: unpacked(got.share8, got) });
    return got;
  },
  heads: (row, layer) => kept(`/api/heads?row=${row}&layer=${layer}`),
  measures: (row) => kept(`/api/measures?row=${row}`),
  tokens: (row) => kept(`/api/tokens?row=${row}`),
  ask: (body) => post('/api/ask', body),
  asked: (id) => call(`/api/ask?id=${encodeURIComponent(id)}`),
  cancel: (id) => post('/api/cancel', { id }),
  trials: (row) => call(`/api/trials?row=${row}`),
  compare: (a, b) => call(`/api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`),
  async search(text) {
    if (ALONE) return searchHere(text);
    return (await call(`/api/search?q=${encodeURIComponent(text)}`)).rows;
  },
};

// Numbers of a file are bytes under a scale of their row and layer.
function unpacked({ scale, data }, { layers, spans }) {
  return data.map((packed, row) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return layers.map((_, layer) => spans.map((__, span) => (bytes[layer * spans.length + span] / 255) * scale[row][layer]));
  });
}

// In a file the page searches what the file holds of each answer.
let searchable = null;
function searchHere(text) {
  searchable ??= Array.from({ length: store.count }, (_, row) => {
    const held = embedded.replies[`/api/case?row=${row}`];
    if (!held) return '';
    return [held.query, held.answer, held.thought, ...(held.gold ?? []).map((each) => each.text), ...(held.verdicts ?? []).map((each) => each.reason),
      ...(held.sessions ?? []).flatMap((session) => (session.turns ?? []).map((turn) => turn.content))].filter(Boolean).join('\n').toLowerCase();
  });
  const wanted = text.toLowerCase();
  return searchable.flatMap((held, row) => (held.includes(wanted) ? [row] : []));
}
