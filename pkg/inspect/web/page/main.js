// The page asks again and again while it is seen, and draws each answer.

// view is what is looked at. All but the span is in the page's address.
const view = { service: '', filter: '', sort: 'connections', offset: 0, pageSize: 25, paused: false, span: 300000 };
let latest, timer, asking;

function readAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  view.service = values.get('service') || '';
  view.filter = values.get('filter') || '';
  view.sort = values.get('sort') || 'connections';
  view.offset = Number(values.get('offset')) || 0;
  at('filter').value = view.filter;
  at('sort').value = view.sort;
}

function question() {
  const values = new URLSearchParams();
  for (const key of ['service', 'filter', 'sort', 'offset']) if (view[key]) values.set(key, view[key]);
  return values.toString();
}

function show(answer) {
  latest = answer;
  view.span = Math.max(60000, 150000 * answer.intervalSeconds);
  document.title = `Beeline ${answer.agent.node}`;
  at('node').textContent = answer.agent.node;
  at('agent').textContent = answer.agent.running ? `agent ${answer.agent.version}` : 'the agent is down; Services are served as it left them';
  at('reading').textContent = `read at ${clock(answer.time)}${answer.seconds ? `, rates over ${rate(answer.seconds)} s` : ''}`;
  showSums(answer);
  chart(at('connections'), 'blue', 'Connections a second', steps(answer.history, answer.history.map((p) => p.connectionsPerSecond)), view.span);
  chart(at('refused'), 'red', 'Refused or dropped a second', steps(answer.history, answer.history.map((p) => p.refusedPerSecond)), view.span);
  showServices(answer);
  showChosen(answer);
  showTraffic(answer.traffic);
  showRefusals(answer.refusals);
  showMaps(answer.maps);
}

function problem(text) {
  if (at('problem').textContent !== text) at('problem').textContent = text;
  at('problem').hidden = !text;
}

// ask asks for an answer now, and for the next one an interval later.
async function ask() {
  clearTimeout(timer);
  asking?.abort();
  const mine = asking = new AbortController();
  let pause = 2;
  try {
    const response = await fetch(`top?${question()}`, { signal: mine.signal });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    pause = answer.intervalSeconds;
    problem('');
    show(answer);
  } catch (error) {
    if (mine.signal.aborted) return;
    problem(`Not read: ${error.message}`);
  }
  if (!view.paused && !document.hidden) timer = setTimeout(ask, 1000 * pause);
}

// turn shows something else at once, also while paused.
function turn(change) {
  Object.assign(view, change);
  const values = question();
  history.replaceState(null, '', values ? `#${values}` : location.pathname);
  ask();
}

function choose(name) {
  turn({ service: name });
  if (!name) return;
  at('chosen').scrollIntoView({ block: 'nearest' });
  at('chosen-title').focus({ preventScroll: true });
}

at('find').addEventListener('submit', (event) => event.preventDefault());
at('filter').addEventListener('input', (event) => turn({ filter: event.target.value.trim(), offset: 0 }));
at('sort').addEventListener('change', (event) => turn({ sort: event.target.value, offset: 0 }));
at('previous').addEventListener('click', () => turn({ offset: Math.max(0, view.offset - view.pageSize) }));
at('next').addEventListener('click', () => turn({ offset: view.offset + view.pageSize }));
at('close').addEventListener('click', () => choose(''));
at('pause').addEventListener('click', () => {
  view.paused = !view.paused;
  at('pause').setAttribute('aria-pressed', view.paused);
  if (view.paused) clearTimeout(timer);
  else ask();
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) clearTimeout(timer);
  else if (!view.paused) ask();
});
addEventListener('hashchange', () => { readAddress(); ask(); });
let width = innerWidth;
addEventListener('resize', () => {
  if (latest && width !== innerWidth) show(latest);
  width = innerWidth;
});
readAddress();
ask();
