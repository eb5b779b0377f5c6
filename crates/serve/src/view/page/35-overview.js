// The overview of a run: HTML that the server makes, or that this file holds already. The one place where markup comes from elsewhere; texts of the run are escaped in it.

const LOOK = 600;                  // Milliseconds between two looks at an overview that is being made; at one that will be.
const LOOK_AGAIN = 5000;
let overviewing = 0;
let laid = ALONE ? at('overview-view').innerHTML : null;

function renderOverview() {
  document.title = 'palimpsest';
  current.row = null;
  // The table's keys go on; nobody waits for an overview.
  watchOverview(++overviewing).catch((error) => fail(error.message));
}
async function watchOverview(mine) {
  const runs = data.runs.map((run) => run.id);
  const run = runs.includes(one('run')) ? one('run') : runs[0];
  if (run === undefined) return;
  if (ALONE) embedded.replies[api.overviewOf(runs[0])] ??= { html: laid };
  for (;;) {
    const { html, error, reading, grown } = await api.overview(run);
    if (mine !== overviewing || one('view') !== 'overview') return;
    layOverview(html ?? (error ? null : ''), runs, run, there(reading) ? `reading ${count(reading, 'attention file')}…` : error);
    if (!there(reading) && !grown) return;
    await new Promise((done) => setTimeout(done, there(reading) ? LOOK : LOOK_AGAIN));
  }
}
// Drawn anew only where it changed, so that what is unfolded stays so.
function layOverview(html, runs, run, words) {
  const view = at('overview-view');
  if (html !== null && html !== laid) {
    view.innerHTML = html;
    laid = html;
  }
  view.querySelector('.overview-bar')?.remove();
  if (runs.length < 2 && !words) return;
  const choice = runs.length > 1 ? make('label', {}, 'Run ', select(runs.map((id) => [id, id]), run, (id) => go({ run: id }))) : null;
  view.prepend(make('div.line.overview-bar', {}, choice, words ? make('p.empty', { role: 'status', text: words }) : null));
}
