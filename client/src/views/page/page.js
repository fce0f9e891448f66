// The page requests news every second and shows them. A report contains all news and requests none.

const ASK_EVERY = 1000;
const token = new URLSearchParams(location.search).get('token') ?? '';
const choice = { over: 'samples', scale: 'log' };
let model = nothing('', '', []);
let last = null;
let wanted = null;
let playing = false;

// Returns the empty data of a run.
function nothing(source, run, events) {
  return { source, run, generation: 0, points: [], evaluations: [], events, begun: null };
}

// Adds the news to the data of the run; the news of an ended run replace them.
function take(news) {
  const same = !news.past && news.source === model.source;
  if (!same || news.run !== model.run) model = nothing(news.source, news.run, same ? model.events : []);
  model.points = model.points.slice(0, news.generation === model.generation ? news.points_from : 0).concat(news.points);
  model.generation = news.generation;
  model.evaluations = model.evaluations.concat(news.evaluations).slice(-512);
  model.events = model.events.concat(news.events).slice(-500);
  model.begun = news.begun;
}

function show() {
  if (!last) return;
  showHead(last);
  showOutcome(last.outcome, last.facts?.end);
  showNodes(last.nodes, last.columns);
  showEvents(model.events);
  showCharts(model, choice, last.nodes);
  if (last.past) {
    const { past } = last;
    at('past').hidden = false;
    at('at').max = past.length;
    if (wanted === null) at('at').value = past.at;
    write('clock', `${duration(past.at)} of ${duration(past.length)}`);
  }
}

async function ask() {
  const newest = model.evaluations.at(-1)?.seconds ?? -1;
  const known = { source: model.source, run: model.run, generation: model.generation, points: model.points.length, evaluated: newest, events: model.events.at(-1)?.number ?? 0 };
  if (wanted !== null) known.at = wanted;
  const answer = await fetch(`news?${new URLSearchParams(known)}`, { headers: { Authorization: `Bearer ${token}` }, cache: 'no-store' });
  if (!answer.ok) throw new Error(await answer.text());
  last = await answer.json();
  take(last);
  show();
  document.body.dataset.news = String(Number(document.body.dataset.news ?? 0) + 1);
}

// Shows that the server does not answer. The data stay on the page: the run may go on without its server.
function lost(error) {
  const over = last?.facts?.end;
  write('state', over ? last.summary.state : 'not connected');
  if (!over) at('state').className = 'pill silent';
  write('notice', over ? 'The run is over, and the server of this page has ended.'
    : `The server of this page does not answer (${error.message}). The page retries every second.`);
  at('notice').hidden = false;
}

async function live() {
  for (;;) {
    try { await ask(); } catch (error) { lost(error); }
    // The page of an ended run requests news only when its slider moves.
    if (last?.past) return;
    await new Promise((resolve) => { setTimeout(resolve, ASK_EVERY); });
  }
}

async function go(second) {
  wanted = second;
  try { await ask(); } catch (error) { lost(error); }
}

async function play() {
  playing = !playing;
  write('play', playing ? 'pause' : 'play');
  const { length } = last.past;
  const step = length < 10 ? length / 20 : Math.max(0.5, length / 200);
  let second = Number(at('at').value) >= length - 0.01 ? 0 : Number(at('at').value);
  while (playing && second <= length) {
    at('at').value = second;
    await go(second);
    await new Promise((resolve) => { setTimeout(resolve, 100); });
    second += step;
  }
  if (playing) await go(length);
  playing = false;
  write('play', 'play');
}

// A switch has one button for each choice; the button of the present choice is pressed.
for (const button of document.querySelectorAll('.switch button')) {
  button.onclick = () => {
    const { of, to } = button.dataset;
    choice[of] = to;
    for (const other of document.querySelectorAll(`.switch button[data-of=${of}]`)) other.ariaPressed = String(other === button);
    show();
  };
}
at('at').oninput = () => { playing = false; return go(Number(at('at').value)); };
at('play').onclick = play;
at('stop').onclick = async () => {
  if (!confirm('End the run on all nodes? Its model is saved.')) return;
  const answer = await fetch('stop', { method: 'POST', headers: { Authorization: `Bearer ${token}` } });
  write('notice', await answer.text());
  at('notice').hidden = false;
};
addEventListener('resize', show);
const own = at('data');
if (own) {
  last = JSON.parse(own.textContent);
  take(last);
  show();
} else {
  live();
}
