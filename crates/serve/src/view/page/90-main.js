// The page's beginning: data, keys, and the folder that may grow.

const data = { runs: [], model: null, stamp: undefined };
const VIEWS = { overview: renderOverview, table: renderTable, case: renderCase, compare: renderCompare };

// Shows what the address says.
async function render(other, fresh) {
  const view = Object.hasOwn(VIEWS, one('view')) ? one('view') : 'overview';
  for (const name of Object.keys(VIEWS)) at(`${name}-view`).hidden = name !== view;
  at('to-table').href = tableAddress();
  for (const name of ['overview', 'table']) at(`to-${name}`).toggleAttribute('aria-current', name === view);
  if (view === 'table') { document.title = 'palimpsest'; if (current.row !== null) { backTo(); current.row = null; } }
  if (other) fail('');
  await VIEWS[view](fresh);
}
// Back in the table, the row that was open is the keyboard's.
function backTo() {
  const place = store.order.indexOf(current.row);
  requestAnimationFrame(() => { if (place >= 0 && grid) { grid.measure(); grid.show(place); grid.scroller.focus({ preventScroll: true }); } });
}

function layHeader() {
  const words = data.runs.map((run) => (run.error ? `${run.id}: ${run.error}` : `${run.id} (${[run.title, run.model?.name].filter(Boolean).join(', ')}${run.counts && run.counts.answered < run.counts.planned ? `, ${run.counts.answered.toLocaleString('en')} of ${run.counts.planned.toLocaleString('en')} answered` : ''})`));
  at('where').textContent = words.join(' · ');
  at('where').title = data.runs.map((run) => run.dir).join('\n');
  const ranked = store.ranked;
  at('fresh').textContent = [ALONE ? 'a saved file' : '', data.model ? `model ${data.model.name}${data.model.ready ? '' : ' (being loaded)'}` : '', ranked && ranked.done < ranked.of ? `ranks ${ranked.done} of ${ranked.of}` : ''].filter(Boolean).join(' · ');
}
async function load() {
  const [runs, table] = await Promise.all([api.runs(), api.table()]);
  data.runs = runs.runs;
  data.model = runs.model ?? null;
  // Rows that were selected keep their names; their numbers may be others in a folder that grew.
  const names = picked.map(nameOf);
  takeTable(table);
  data.stamp = table.stamp ?? runs.stamp;
  picked.splice(0, picked.length, ...names.map(rowOf).filter((row) => row !== undefined));
  if (one('q')) await search(one('q')).catch(() => { store.hits = null; });
  sift();
  layHeader();
}

// A folder that a run still writes is followed: what is open, chosen and scrolled to stays.
async function follow() {
  let wait = 2000;
  for (;;) {
    await new Promise((done) => setTimeout(done, document.hidden ? 10_000 : wait));
    try {
      const { stamp } = await api.stamp();
      if (lost) { lost = false; fail(''); }
      wait = 2000;
      if (stamp === data.stamp) continue;
      const open = current.row === null ? null : nameOf(current.row);
      replies.clear();
      await load();
      data.stamp = stamp;
      if (open) { const row = rowOf(open); if (row !== undefined) current.row = row; }
      await render(false, true);
    } catch (error) {
      if (error.status === 0) { lost = true; wait = 5000; }
      fail(error.message);
      // A server with another token: only the address that it printed helps.
      if (error.status === 401) return;
    }
  }
}
let lost = false;

function toTable() {
  go({ ...Object.fromEntries(Object.keys(shown).filter((key) => !TABLE_KEYS(key) && key !== 'col').map((key) => [key, null])), view: 'table' }, true);
}
const typing = (target) => target.matches?.('input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]');

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector('dialog[open]')) return;
  if (event.key === 'Escape') {
    if (event.target === at('search')) { at('search').value = ''; go({ q: null }); grid?.scroller.focus(); } else if (typing(event.target)) event.target.blur();
    else if (all('session').length || one('layer') || all('token').length) go({ session: null, layer: null, token: null, look: null });
    else if (!['table', 'overview'].includes(one('view'))) toTable();
    return;
  }
  if (typing(event.target)) return;
  const view = one('view');
  const acts = {
    '?': () => at('keys').showModal(),
    '/': () => { if (view !== 'table') toTable(); at('search').focus(); at('search').select(); },
    f: () => { if (view !== 'table') toTable(); at('filters').open = true; at('filter-list').querySelector('input')?.focus(); },
    t: () => { if (view !== 'table') toTable(); else grid?.scroller.focus(); },
    o: () => go({ view: null }, true),
    n: () => at('step-on')?.click(),
    p: () => at('step-back')?.click(),
    c: () => { if (view === 'case' && current.row !== null) go(changedTo(current.row), true); else if (view === 'table') compareHeld(); },
    a: () => { if (view === 'case') { toPart('again'); at('ask')?.focus({ preventScroll: true }); } },
  };
  if (view === 'case' && /^[1-9]$/.test(event.key)) {
    const parts = at('case-view').querySelectorAll('[id^="part-"]');
    const part = parts[Number(event.key) - 1];
    if (part) toPart(part.id.slice(5));
  } else if (event.key in acts) acts[event.key]();
  else return;
  event.preventDefault();
}

async function begin() {
  if (location.hash === '#words') { history.replaceState(null, '', location.pathname); at('words').showModal(); }
  readAddress();
  addEventListener('popstate', () => { readAddress(); render(true, 'back'); });
  addEventListener('hashchange', () => { readAddress(); render(true, 'back'); });
  addEventListener('keydown', keys);
  // Links within the page are steps like all others.
  document.addEventListener('click', (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const address = link.getAttribute('href');
    if (address === '#main') { at('main').focus(); return; }
    if (address === '#words') { at('words').showModal(); return; }
    history.pushState(null, '', location.href.split('#')[0] + address);
    const before = one('view');
    readAddress();
    render(before !== one('view'), 'back');
  });
  at('error-close').onclick = () => fail('');
  at('link').onclick = () => copy(location.href, at('link'));
  at('keys-open').onclick = () => at('keys').showModal();
  for (const dialog of document.querySelectorAll('dialog')) dialog.querySelector('.close').onclick = () => dialog.close();
  at('search-form').onsubmit = (event) => { event.preventDefault(); go({ q: at('search').value.trim() }); grid?.scroller.focus(); };
  at('search').oninput = later(180, () => go({ q: at('search').value.trim() }));
  const wide = matchMedia('(min-width: 75.01rem)');
  const unfold = () => { at('filters').open = wide.matches; };
  wide.addEventListener('change', unfold);
  unfold();
  PHONE.addEventListener('change', () => { if (!at('overview-view').hidden) renderOverview(); });
  darkness.addEventListener('change', () => { for (const picture of current.pictures) picture.draw(); });
  addEventListener('resize', later(80, () => { for (const picture of current.pictures) picture.draw(); if (one('view') === 'table') render(false, 'back'); }));
  try {
    await load();
  } catch (error) {
    fail(error.message);
    return;
  }
  await render(true);
  performance.mark?.('palimpsest: shown');
  if (!ALONE) follow();
}
begin();
