// Take away: the same view as Python and as a command, beside the files that each picture gives.

const quoted = (text) => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const python = (value) => JSON.stringify(value);

// The command that shows what is on the page: the folders, and the end of the address.
function commandHere() {
  const dirs = data.runs.map((run) => quoted(run.dir ?? run.id)).join(' ');
  return `palimpsest view ${dirs}   # add ${location.hash} to the address that it prints`;
}
const commandOf = (held) => `palimpsest view ${quoted(runOf(held).dir ?? 'DIR')}`;
function fileOf(held) {
  const names = [['case', held.case], ['probe', held.probe], ['condition', held.condition.name]].filter(([, name]) => name);
  return `${commandOf(held)} ${names.map(([key, name]) => `--${key} ${quoted(name)}`).join(' ')} --html ${quoted(`${safeName(held.case)}.html`)}`;
}
function pythonOf(held, what = 'strip') {
  const [run, condition] = [runOf(held), held.condition.name];
  const rows = chosenRows(held);
  const lines = ['import palimpsest', `run = palimpsest.Run.open(${python(run.dir ?? run.id)})`];
  const open = `run.trace(${[held.case, held.probe, ...(condition ? [condition] : [])].map(python).join(', ')})`;
  if (what === 'curves') lines.push('old = run.masses("query", "old").to_frame()   # by case, probe, condition and layer'.replaceAll('old', held.sessions.find((session) => session.role)?.role ?? 'old'));
  else if (!held.rows) lines.push(`answers = run.answers.to_frame().query(${python(`case == ${python(held.case)} and probe == ${python(held.probe)}`)})`);
  else if (measureNow() === 'effect' || what === 'causes') lines.push(`causes = run.causes.to_frame().query(${python(`case == ${python(held.case)} and probe == ${python(held.probe)}`)})`);
  else {
    lines.push(`trace = ${open}`, `mass = trace.to_frame()   # a line for each layer, head, row and span; row ${rows.join(', ')}`);
    if (what === 'heads' && one('layer')) lines.push(`mass = mass[mass.layer == ${one('layer')}]`);
    lines.push(`trace.plot(${python(rows[0] ?? 'query')})`);
  }
  return `${lines.join('\n')}\n`;
}
function pythonOfTable() {
  return `${['import palimpsest', ...data.runs.filter((run) => !run.error).map((run) => `run = palimpsest.Run.open(${python(run.dir ?? run.id)})\nrows = run.answers.to_frame().merge(run.verdicts.to_frame(), on=["case", "probe", "condition"], how="left")`)].join('\n')}\n`;
}

function takePart(held) {
  const code = (title, text) => make('div', {}, make('div.line.spread.small-buttons', {}, make('h4', { text: title }), button('Copy', (event) => copy(text, event.currentTarget), { 'aria-label': `Copy: ${title}` })), make('pre.code', { text, tabIndex: 0 }));
  const section = make('section.card', { 'aria-label': 'Take away' }, make('h3', { text: 'Take away' }), make('p.quiet', { text: 'Each picture gives itself as SVG and its numbers as CSV, by the buttons beside its title. The rest of this view:' }));
  const list = make('div');
  const lay = () => {
    list.replaceChildren(code('As a command', commandHere()), ...(ALONE ? [] : [code('As a file that works without a server', fileOf(held))]), code('As Python', pythonOf(held)),
      make('div.line.small-buttons', {}, button('The answer as JSON', () => download(`${safeName(`${held.case}-${held.probe}`)}.json`, 'application/json', `${JSON.stringify(held, null, 2)}\n`)), button('Numbers of the history as CSV', () => { const { head, rows } = numbersOf(held, lanesOf(held)); download(`${safeName(`${held.case}-${held.probe}-history`)}.csv`, 'text/csv', csv(head, rows)); }),
        held.causes ? button('Causes as CSV', () => download(`${safeName(`${held.case}-${held.probe}-causes`)}.csv`, 'text/csv', causesCsv(held))) : null));
  };
  lay();
  current.redo.push(lay);
  section.append(list);
  if (held.missing?.length) section.append(make('h4', { text: 'What is not here yet, and what brings it' }), make('div.empty', {}, ...held.missing.map(({ what, command }) => make('p', {}, `${what}: `, make('code', { text: command })))));
  return section;
}
function causesCsv(held) {
  const rows = Object.entries(held.causes).flatMap(([kind, list]) => (Array.isArray(list) ? list : []).map((row) => [kind, row.span ?? (there(row.stretch) ? `stretch ${row.stretch}` : ''), row.role ?? '', row.carrier ?? '', (row.layers ?? []).join('-'), row.log_p ?? row.contrast ?? null, (row.effect ?? row.total ?? row.replaced ?? row.forced)?.log_p_drop ?? row.drop ?? null, (row.effect ?? row.total ?? row.replaced ?? row.forced)?.kl ?? null, (row.effect ?? row.total ?? row.replaced ?? row.forced)?.kl_answer ?? null]));
  return csv(['kind', 'span', 'role', 'carrier', 'layers', 'plain', 'log_p_drop', 'kl', 'kl_answer'], rows);
}
