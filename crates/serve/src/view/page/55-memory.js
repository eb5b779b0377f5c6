// What a memory system wrote, kept and returned, and where the fact was lost.

function memoryPart(held) {
  const { memory } = held;
  if (!memory) return null;
  const section = make('section.card', { 'aria-label': 'Memory system' }, make('h3', { text: `Memory system ${memory.system}` }));
  if (memory.failed) section.append(make('p.empty', { text: `It failed: ${memory.failed}` }));
  if (memory.searched) section.append(make('p.quiet', { text: `Searched for: ${memory.searched}` }));
  const stages = ['written', 'kept', 'retrieved', 'shown'];
  if (memory.facts?.length) {
    section.append(make('div.wide', { tabIndex: 0, role: 'region', 'aria-label': 'Where each fact was lost' }, make('table', {}, make('caption.away', { text: 'Where each fact was lost' }),
      make('thead', {}, make('tr', {}, make('th', { scope: 'col', text: 'fact' }), make('th.left', { scope: 'col', text: 'from' }), ...stages.map((stage) => make('th', { scope: 'col', text: stage })))),
      make('tbody', {}, ...memory.facts.map((fact) => make('tr', {}, make('th', { scope: 'row', text: fact.role }), make('td.left', { text: (fact.sessions ?? []).map((n) => `session[${n}]`).join(' ') }), ...stages.map((stage) => make('td', {}, make(`span.pill${fact.stages?.[stage] === 'yes' ? '.right' : fact.stages?.[stage] === 'no' ? '.wrong' : ''}`, { text: fact.stages?.[stage] ?? 'unknown' })))))))));
  }
  const list = (title, entries, line) => {
    if (!entries) return;
    section.append(make('h4', { text: `${title} (${entries.length})` }));
    if (!entries.length) { section.append(make('p.quiet', { text: 'nothing' })); return; }
    section.append(make('div.scroll', { tabIndex: 0, role: 'region', 'aria-label': title }, make('ol', {}, ...entries.slice(0, 500).map((entry) => make('li', {}, ...line(entry))))));
    if (entries.length > 500) section.append(make('p.quiet', { text: `The first 500 of ${entries.length}; palimpsest memory show has all.` }));
  };
  const from = (entry) => make('span.quiet', { text: entry.sources?.length ? ` from ${entry.sources.join(' ')}` : '' });
  list('Returned to this question', memory.returned, (entry) => [entry.text ?? '', from(entry), there(entry.score) ? make('span.quiet', { text: ` score ${plain(entry.score)}` }) : '', entry.shown === false ? make('span.pill', { text: 'not shown: no room' }) : '']);
  list('Kept at the end', memory.kept, (entry) => [entry.text ?? '', from(entry)]);
  list('Written, in order', memory.written, (entry) => [make('span.pill', { text: entry.op }), ` ${entry.text ?? entry.previous ?? entry.id ?? ''}`, entry.previous && entry.text ? make('span.quiet', { text: ` before: ${entry.previous}` }) : '', make('span.quiet', { text: there(entry.session) ? ` at ${entry.session}` : '' })]);
  return section;
}
