// Maps: layers by sessions, the mean over heads; the heads of one layer on a click; effects by windows of layers. Rows of the prompt that are
// chosen together are averaged over their tokens.

const MAP = { top: 34, left: 46, bottom: 34, right: 88, cell: [9, 28] };

// Rows that attend: those that the address names, else the viewer's.
function chosenRows(held) {
  const labels = (held.rows ?? []).map((row) => row.label);
  const named = all('of').filter((label) => labels.includes(label));
  return named.length ? named : [labels[held.viewer ?? 0]].filter(Boolean);
}
function rowWeights(held, names) {
  const sizes = names.map((label) => { const row = held.rows.find((each) => each.label === label); return Math.max(1, (row?.tokens?.[1] ?? 1) - (row?.tokens?.[0] ?? 0)); });
  const whole = sum(sizes);
  return sizes.map((size) => size / whole);
}
const MEASURES = { mass: ['mass', percent], density: ['density', times], value_norm: ['value norm', plain], output_norm: ['output norm', plain], attribution: ['attribution', signed], effect: ['effect by window', signed] };
const measureNow = () => (Object.hasOwn(MEASURES, one('measure')) ? one('measure') : 'mass');

// A matrix of numbers [line][column], drawn.
function drawMap({ held, sessions, matrix, lines, lineTitle, named = String, two, written: write, chosen, title }, width) {
  const left = MAP.left + Math.max(0, ...lines.map((line) => named(line).length - 2)) * 6;
  const right = width < LANE.narrow ? 4 : MAP.right;
  const cell = clamp(Math.round(420 / lines.length), ...MAP.cell);
  const top = MAP.top;
  const bottom = top + lines.length * cell;
  const scene = new Scene(width, bottom + MAP.bottom + (right < 20 ? 22 : 0), title);
  const columns = columnsOf(sessions, left, width - left - right);
  const flat = matrix.flat().filter(there);
  const scale = two ? swing(flat) : ramp(flat);
  matrix.forEach((line, l) => line.forEach((value, c) => {
    const [x, w] = columns[c];
    scene.rect(x, top + l * cell, w + 0.3, cell + 0.3, there(value) ? (two ? { between: scale.place(value) } : { ramp: scale.place(value) }) : 'none');
  }));
  const every = Math.ceil(14 / cell);
  lines.forEach((line, l) => {
    // From the bottom, so that layer 0 has its number.
    if ((lines.length - 1 - l) % every === 0 || chosen === line) scene.text(left - 6, top + l * cell + cell / 2 + 4, named(line), { size: 11, anchor: 'end', fill: chosen === line ? 'select' : 'quiet', weight: chosen === line ? 700 : 400 });
    if (chosen === line) scene.rect(left, top + l * cell, width - left - right, cell, null, { stroke: 'select', width: 1.5 });
  });
  if (bottom - top > lineTitle.length * 6) scene.text(12, top + (bottom - top) / 2, lineTitle, { size: 11, turned: true, anchor: 'middle', fill: 'quiet' });
  sessions.forEach((session, c) => { if (session.role) scene.rect(columns[c][0], top, columns[c][1], bottom - top, null, { stroke: 'ink', width: 1.6 }); });
  bands(scene, held, [], columns, top, 0);
  const chosenNow = new Set(all('session'));
  sessions.forEach((session, c) => { if (chosenNow.has(session.label)) scene.rect(columns[c][0] + 2, top + 1, columns[c][1] - 4, bottom - top - 2, null, { stroke: 'select', width: 1.5 }); });
  axes(scene, held, sessions, columns, top, bottom);
  legend(scene, scale, two, write, width, right, top, bottom);
  return {
    scene,
    cells: {
      columns: sessions.length, rows: lines.length,
      box: (c, r) => [columns[c][0], top + r * cell, columns[c][1], cell],
      at(x, y) { const c = underColumn(columns, x); const r = Math.floor((y - top) / cell); return c === null || r < 0 || r >= lines.length ? null : [c, r]; },
    },
  };
}
function legend(scene, scale, two, write, width, right, top, bottom) {
  const steps = 48;
  const ticks = two ? [[1, scale.most], [0, 0], [-1, -scale.most]] : [[1, scale.most], [2 / 3, scale.most / 10], [1 / 3, scale.most / 100], [0, scale.least]];
  if (right < 20) {
    const [x, y, w] = [MAP.left, bottom + MAP.bottom + 4, Math.min(150, width - 200)];
    for (let i = 0; i < steps; i += 1) scene.rect(x + (w * i) / steps, y, w / steps + 0.3, 9, two ? { between: (2 * i) / (steps - 1) - 1 } : { ramp: i / (steps - 1) });
    scene.text(x - 4, y + 9, two ? write(-scale.most) : `≤ ${write(scale.least)}`, { size: 10, anchor: 'end', fill: 'quiet' });
    scene.text(x + w + 4, y + 9, write(scale.most), { size: 10, fill: 'quiet' });
    return;
  }
  const [x, h] = [width - right + 12, Math.min(bottom - top, 180)];
  for (let i = 0; i < steps; i += 1) scene.rect(x, top + (h * i) / steps, 10, h / steps + 0.3, two ? { between: 1 - (2 * i) / (steps - 1) } : { ramp: 1 - i / (steps - 1) });
  for (const [place, value] of ticks) scene.text(x + 14, top + (two ? (1 - place) / 2 : 1 - place) * h + 4, `${!two && place === 0 ? '≤ ' : ''}${write(value)}`, { size: 10, fill: 'quiet' });
}

// The mean of the chosen rows, weighted by their tokens: [line][span].
function averaged(held, names, labels, byRow) {
  const weights = rowWeights(held, names);
  const places = names.map((name) => labels.indexOf(name));
  const used = places.map((place, i) => [place, weights[i]]).filter(([place]) => place >= 0);
  const whole = sum(used.map(([, weight]) => weight)) || 1;
  const shape = byRow[used[0]?.[0]] ?? [];
  return shape.map((line, l) => line.map((_, s) => {
    const numbers = used.map(([place, weight]) => [byRow[place][l][s], weight]);
    return numbers.some(([x]) => !there(x)) ? null : sum(numbers.map(([x, weight]) => x * weight)) / whole;
  }));
}
const overShare = (mass, share) => mass.map((line, l) => line.map((x, s) => (there(x) && share[l][s] > 0 ? x / share[l][s] : null)));
// Columns of a map: sessions of the prompt, and gaps for those that were dropped.
const columnsShown = (held) => (held.sessions ?? []).filter((session) => there(session.span) || session.dropped);
const toSessions = (held, matrix, spans) => {
  const places = columnsShown(held).map((session) => { if (!there(session.span)) return -1; const label = held.spans?.[session.span]?.label ?? session.label; const place = spans[session.span] === label ? session.span : spans.indexOf(label); return place; });
  return matrix.map((line) => places.map((place) => line[place] ?? null));
};

// What the map shows now: numbers, lines, how they are written.
async function mapNumbers(held, row) {
  const measure = measureNow();
  const names = chosenRows(held);
  const [label, write] = MEASURES[measure];
  if (measure === 'effect') {
    const windows = held.causes?.windows ?? [];
    const lines = unique(windows.map((each) => each.layers.join(' to '))).sort((a, b) => Number.parseInt(b, 10) - Number.parseInt(a, 10));
    const sessions = (held.sessions ?? []).filter((session) => session.dropped || windows.some((each) => each.span === session.label));
    const matrix = lines.map((line) => sessions.map((session) => windows.find((each) => each.span === session.label && each.layers.join(' to ') === line)?.effect?.log_p_drop ?? null));
    return { matrix, lines: lines.map((line) => { const [a, b] = line.split(' to ').map(Number); return `${a}–${b - 1}`; }), lineTitle: 'layers blocked', sessions, two: true, label, write };
  }
  const sessions = columnsShown(held);
  if (measure === 'mass' || measure === 'density') {
    const got = await api.layers(row);
    const mass = averaged(held, names, got.rows, got.mass);
    const matrix = measure === 'mass' ? mass : overShare(mass, averaged(held, names, got.rows, got.share));
    return { matrix: toSessions(held, matrix, got.spans).toReversed(), lines: got.layers.map((layer) => layer.index).toReversed(), kinds: got.layers, lineTitle: 'layer', sessions, two: false, label, write };
  }
  const got = await api.measures(row);
  const matrix = measure === 'attribution' ? got.attribution : averaged(held, names.filter((name) => got.rows.includes(name)).length ? names : [got.rows[0]], got.rows, got[measure]);
  return { matrix: toSessions(held, matrix, got.spans).toReversed(), lines: got.layers.toReversed(), lineTitle: 'layer', sessions, two: measure === 'attribution', label, write };
}
async function headNumbers(held, row, layer) {
  const [measure, names] = [measureNow(), chosenRows(held)];
  const sessions = columnsShown(held);
  if (measure === 'mass' || measure === 'density') {
    const [got, over] = await Promise.all([api.heads(row, layer), measure === 'density' ? api.layers(row) : null]);
    let matrix = averaged(held, names, got.rows, got.mass);
    if (over) {
      const place = over.layers.findIndex((each) => each.index === layer);
      const share = averaged(held, names, over.rows, over.share)[place];
      matrix = matrix.map((line) => line.map((x, s) => (there(x) && share[s] > 0 ? x / share[s] : null)));
    }
    return { matrix: toSessions(held, matrix, got.spans).toReversed(), lines: Array.from({ length: got.heads }, (_, h) => h).toReversed(), sessions };
  }
  return null;
}

function mapPart(held) {
  const row = current.row;
  const windows = held.causes?.windows?.length > 0;
  if (!held.layers?.length && !windows) return null;
  const options = [...(held.layers?.length ? [['mass', 'mass'], ['density', 'density']] : []), ...(runOf(held).has?.measures || (held.strip ?? []).some((lane) => lane.key.startsWith('value_norm')) ? [['value_norm', 'value norm'], ['output_norm', 'output norm'], ['attribution', 'attribution']] : []), ...(windows ? [['effect', 'effect by window']] : [])];
  const section = make('section.card', { 'aria-label': 'Layers' });
  const maps = make('div');
  const tools = make('div.line.tools', {}, make('label', {}, 'Measure ', select(options, options.some(([key]) => key === measureNow()) ? measureNow() : options[0]?.[0] ?? 'mass', (value) => go({ measure: value === 'mass' ? null : value }))), rowsPicker(held));
  section.append(tools, maps, curvesOf(held) ?? '');
  let asked = 0;
  let last = null;
  const lay = async () => {
    // A session that is chosen changes no number of a map.
    const wanted = JSON.stringify([measureNow(), chosenRows(held), one('layer')]);
    if (wanted === last) return;
    last = wanted;
    const mine = ++asked;
    try {
      const found = await mapNumbers(held, row);
      const layer = one('layer') === '' ? null : Number(one('layer'));
      const heads = layer !== null && held.layers ? await headNumbers(held, row, layer).catch((error) => ({ error: error.message })) : null;
      if (mine !== asked || current.held !== held) return;
      current.pictures = current.pictures.filter((picture) => !picture.ofMap);
      const names = chosenRows(held).join(' + ');
      const what = measureNow() === 'attribution' || measureNow() === 'effect' ? found.label : `${found.label} from ${names}`;
      const nodes = [mapPicture(held, { id: 'map', title: `Layers by ${segments(held)}: ${what}`, found, chosen: layer,
        note: measureNow() === 'effect' ? 'What the answer loses, in nats a token, where the session is hidden from everything from the question on at these layers; above 0 it needs it.' : 'Mean over heads. Colours by the logarithm, as the scale shows.',
        pick: (c, r, more) => { if (measureNow() === 'effect') chooseSession(found.sessions[c].label, more); else go({ layer: String(found.lines[r]) === one('layer') ? null : found.lines[r] }); },
        hint: measureNow() === 'effect' ? null : 'Point at a cell, or move with the arrow keys; a click or Enter shows the heads of its layer.' })];
      if (heads?.matrix) {
        nodes.push(mapPicture(held, { id: 'heads', title: `Heads of layer ${layer} by ${segments(held)}: ${what}`, found: { ...found, ...heads, lineTitle: 'head', named: (head) => `L${layer} H${head}` }, pick: (c, _, more) => chooseSession(heads.sessions[c].label, more), tools: [button('Close heads', () => go({ layer: null }))] }));
      } else if (heads?.error) nodes.push(make('p.empty', { text: `Heads of layer ${layer}: ${heads.error}` }));
      const focused = document.activeElement?.closest?.('figure')?.id;
      maps.replaceChildren(...nodes);
      for (const picture of current.pictures) if (picture.ofMap) picture.draw();
      if (focused === 'map') at('map')?.querySelector('canvas').focus({ preventScroll: true });
    } catch (error) {
      if (mine === asked) maps.replaceChildren(make('p.empty', { text: error.message }));
    }
  };
  lay();
  current.redo.push(lay);
  return section;
}
function mapPicture(held, { id, title, found, chosen, note, pick, hint, tools }) {
  const { matrix, lines, sessions, write, two, lineTitle, named } = found;
  const lineWords = named ?? ((line) => `${lineTitle} ${line}`);
  const measured = sessions.map((session, c) => [session, c]).filter(([session]) => !session.dropped);
  const picture = pictured({
    id, title, note, hint: hint ?? undefined, tools,
    draw: (width) => drawMap({ held, sessions, matrix, lines, lineTitle, named, two, written: write, chosen, title: `${held.case} ${held.probe}: ${title}` }, width),
    words: (c, r) => `${sessionWords(held, sessions[c])}, ${lineWords(lines[r])}${there(matrix[r][c]) ? `: ${found.label} ${write(matrix[r][c])}` : ''}`,
    rest() {
      const chosenNow = sessions.map((session, c) => [session, c]).filter(([session]) => all('session').includes(session.label));
      if (!chosenNow.length || found.label === 'density') return null;
      const most = lines.map((line, r) => [line, sum(chosenNow.map(([, c]) => matrix[r][c] ?? 0))]).toSorted((a, b) => b[1] - a[1]).slice(0, 3);
      return `${chosenNow.map(([session]) => session.label).join(' + ')}: most at ${most.map(([line, x]) => `${lineWords(line)} (${write(x)})`).join(', ')}`;
    },
    pick,
    table: () => ({ head: [lineTitle, ...measured.map(([session]) => session.label)], form: [named ?? String, ...measured.map(() => write)], rows: lines.map((line, r) => [line, ...measured.map(([, c]) => matrix[r][c])]).toReversed() }),
    take: { name: () => `${held.case}-${held.probe}-${id}-${measureNow()}`, python: () => pythonOf(held, id), command: () => commandOf(held) },
  });
  picture.ofMap = true;
  return picture.root;
}
// Whose attention is shown: one row of the prompt or several, averaged over their tokens.
function rowsPicker(held) {
  const rows = held.rows ?? [];
  if (rows.length < 2) return null;
  const field = make('fieldset', {}, make('legend', { text: 'Attention of' }));
  const lay = () => {
    const now = chosenRows(held);
    field.replaceChildren(field.firstChild, ...rows.map((row) => make('label', {}, make('input', { type: 'checkbox', checked: now.includes(row.label), value: row.label, onchange() {
      const next = rows.map((each) => each.label).filter((label) => (label === row.label ? this.checked : chosenRows(held).includes(label)));
      go({ of: next });
      lay();
    } }), ` ${row.label}${row.role && row.role !== row.label ? ` (${row.role})` : ''}`)));
  };
  lay();
  return field;
}

// Attention by layer to each side, beside its noise baseline: the numbers of `palimpsest lens`.
function curvesOf(held) {
  const known = (held.curves ?? []).filter((curve) => curve.mass?.some(there));
  if (!known.length) return null;
  const named = new Set((held.rows ?? []).flatMap((row) => [row.label, row.role]));
  // Those of the rows that the maps show, and what one session pays to another.
  const isOf = (curve, names) => names.some((name) => { const row = held.rows?.find((each) => each.label === name); return curve.from === name || curve.from === row?.role; });
  const back = (curve) => !['query', 'answer', 'last'].includes(curve.from) && (sideOf(held, curve.from) !== '' || !named.has(curve.from));
  const now = () => { const found = known.filter((curve) => back(curve) || isOf(curve, chosenRows(held))); return found.length ? found : known; };
  const layers = (held.layers ?? []).map((layer) => layer.index);
  const colour = (curve) => colourOf(held, curve.to);
  const picture = pictured({
    id: 'curves', title: 'By layer, beside the noise baseline', hint: 'A column a layer. Dashed: the noise baseline, attention to the sessions beside the evidence.',
    draw(width) {
      const narrow = width < LANE.narrow;
      const curves = now();
      const [left, right, top, bottom] = [52, narrow ? 8 : 150, 14, 200];
      const scene = new Scene(width, bottom + 34 + (narrow ? 16 * curves.length : 0), `${held.case} ${held.probe}: attention by layer`);
      const most = roundUp(Math.max(...curves.flatMap((curve) => [...curve.mass, ...(curve.noise_mass ?? [])]).filter(there)));
      const x = (i) => left + ((width - left - right) * (i + 0.5)) / layers.length;
      const y = (value) => bottom - ((bottom - top) * value) / most;
      for (const part of [0, 0.5, 1]) {
        scene.line(left, y(part * most), width - right, y(part * most), 'line');
        scene.text(left - 6, y(part * most) + 4, percent(part * most), { size: 11, anchor: 'end', fill: 'quiet' });
      }
      const every = Math.ceil(layers.length / 12);
      layers.forEach((layer, i) => { if (i % every === 0) scene.text(x(i), bottom + 14, String(layer), { size: 11, anchor: 'middle', fill: 'quiet' }); });
      scene.text(left, bottom + 29, 'layer', { size: 11, fill: 'quiet' });
      curves.forEach((curve, n) => {
        const of = back(curve) ? 'back' : colour(curve);
        const lines = (values, more) => values.forEach((value, i) => { if (i > 0 && there(value) && there(values[i - 1])) scene.line(x(i - 1), y(values[i - 1]), x(i), y(value), of, more); });
        lines(curve.mass, { width: 2 });
        if (curve.noise_mass) lines(curve.noise_mass, { width: 1.3, dash: [2, 3] });
        curve.mass.forEach((value, i) => { if (there(value)) scene.rect(x(i) - 2, y(value) - 2, 4, 4, of); });
        const [lx, ly] = narrow ? [left, bottom + 46 + n * 16] : [width - right + 10, top + 10 + n * 34];
        scene.rect(lx, ly - 8, 9, 9, of);
        scene.text(lx + 14, ly, `${curve.from} to ${curve.to}`, { size: 11.5 });
        if (!narrow && curve.mean) scene.text(lx + 14, ly + 14, `${percent(curve.mean.mass)}${there(curve.mean.noise_mass) ? ` (${percent(curve.mean.noise_mass)})` : ''}`, { size: 10.5, fill: 'quiet' });
      });
      return { scene, cells: { columns: layers.length, rows: 1, box: (c) => [x(c) - (width - left - right) / layers.length / 2, top, (width - left - right) / layers.length, bottom - top], at(px) { const c = Math.floor(((px - left) / (width - left - right)) * layers.length); return c < 0 || c >= layers.length ? null : [c, 0]; } } };
    },
    words: (c) => `layer ${layers[c]}: ${now().map((curve) => `${curve.from} to ${curve.to} ${percent(curve.mass[c])}${curve.noise_mass ? ` (noise ${percent(curve.noise_mass[c])})` : ''}`).join(' · ')}`,
    table: (curves = known) => ({ head: ['layer', ...curves.flatMap((curve) => [`${curve.key} mass`, `${curve.key} noise mass`])], form: [(x) => String(x), ...curves.flatMap(() => [percent, percent])],
      rows: [...layers.map((layer, i) => [layer, ...curves.flatMap((curve) => [curve.mass[i], curve.noise_mass?.[i] ?? null])]), ['mean', ...curves.flatMap((curve) => [curve.mean?.mass ?? null, curve.mean?.noise_mass ?? null])]] }),
    take: { name: () => `${held.case}-${held.probe}-by-layer`, python: () => pythonOf(held, 'curves'), command: () => `palimpsest lens ${quoted(runOf(held).dir ?? 'DIR')}` },
  });
  return picture.root;
}
