// The overview of a run: HTML that the server makes, or that this file holds already; of several runs the finding and the charts, a row each.
// The one place where markup comes from elsewhere; texts of the run are escaped in it.

const LOOK = 600;                  // Milliseconds between two looks at an overview that is being made; at one that will be.
const LOOK_AGAIN = 5000;
let overviewing = 0;
const INITIAL = ALONE ? at('overview-view').innerHTML : null;
let laid = INITIAL;

function renderOverview() {
  document.title = 'palimpsest';
  current.row = null;
  // The table's keys go on; nobody waits for an overview.
  watchOverview(++overviewing).catch((error) => fail(error.message));
}
async function watchOverview(mine) {
  const runs = data.runs.map((run) => run.id);
  if (!runs.length) return;
  const chosen = runs.includes(one('run')) ? [one('run')] : runs;
  if (ALONE) embedded.replies[api.overviewOf(runs[0], false)] ??= { html: INITIAL };
  for (;;) {
    const got = await Promise.all(chosen.map(api.overview));
    if (mine !== overviewing || one('view') !== 'overview') return;
    const reading = sum(got.map((reply) => reply.reading ?? 0));
    const isMade = got.some((reply) => there(reply.reading));
    layOverview(chosen.length > 1 ? rowsOf(chosen, got) : got[0].html ?? (got[0].error ? null : ''), runs, chosen.length > 1 ? '' : chosen[0],
      isMade ? `reading ${count(reading, 'attention file')}…` : got.map((reply) => reply.error).filter(Boolean).join(' '));
    if (!isMade && !got.some((reply) => reply.grown)) return;
    await new Promise((done) => setTimeout(done, isMade ? LOOK : LOOK_AGAIN));
  }
}
// Of each run its finding and its charts, under its name, which leads to all of it.
function rowsOf(runs, replies) {
  const rows = make('div');
  replies.forEach(({ html }, i) => {
    const whole = make('template');
    whole.innerHTML = html ?? '';
    const parts = [...whole.content.querySelectorAll('p.finding, .charts')];
    // One switch is for all.
    if (i > 0) whole.content.querySelector('.switch > .line')?.remove();
    const { model } = data.runs.find((run) => run.id === runs[i]);
    rows.append(make('section', { 'aria-label': runs[i] }, make('h2', {}, make('a', { href: linkTo({ run: runs[i] }), text: runs[i] }), model ? make('span.quiet', { text: ` ${model.name}` }) : ''), ...parts));
  });
  return rows.innerHTML;
}
// Drawn anew only where it changed, so that what is unfolded stays so.
function layOverview(html, runs, run, words) {
  const view = at('overview-view');
  if (html !== null && html !== laid) {
    view.innerHTML = html;
    laid = html;
    // Among several runs a link to some answers means those of this run.
    if (run && runs.length > 1) for (const link of view.querySelectorAll('a[href^="#f."]')) link.href = `${link.getAttribute('href')}&f.run=${encodeURIComponent(run)}`;
  }
  view.querySelector('.overview-bar')?.remove();
  if (runs.length < 2 && !words) return;
  const choice = runs.length > 1 ? make('label', {}, 'Run ', select([['', `all ${runs.length}`], ...runs.map((id) => [id, id])], run, (id) => go({ run: id || null }))) : null;
  view.prepend(make('div.line.overview-bar', {}, choice, words ? make('p.empty', { role: 'status', text: words }) : null));
}
