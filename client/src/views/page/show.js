// Shows the news in the elements of the page.

const SECONDS = 0; const SAMPLES = 1; const LOSS = 2; const SPEED = 3; const SENT = 4; const DENSE = 5; const STALENESS = 6;
// Most named numbers that have a chart.
const NAMED = 16;

function showHead(news) {
  const { facts, summary } = news;
  write('run', news.run ? news.run.slice(0, 8) : '');
  const state = at('state');
  write('state', summary.state);
  state.className = `pill ${summary.state}`;
  document.title = summary.share === null ? 'Tau' : `${percent(summary.share)} ${summary.state} – Tau`;
  write('job', facts ? [facts.data, facts.model, facts.optimiser, facts.exchange].join(' · ') : 'no run yet');
  write('epoch', facts && summary.epoch !== null ? `epoch ${decimal(summary.epoch)} of ${facts.epochs}` : `${count(summary.samples)} samples`);
  write('share', percent(summary.share));
  at('done').style.width = `${100 * (summary.share ?? 0)}%`;
  const begun = news.begun === null ? '' : `· begun ${new Date(news.begun * 1000).toLocaleString()}`;
  write('elapsed', facts?.end ? `in ${duration(summary.elapsed)}` : `${duration(summary.elapsed)} so far`);
  write('left', facts?.end ? begun : summary.left === null ? '' : `· about ${duration(summary.left)} left`);
  write('speed', count(summary.samples_per_second));
  const judged = judgedBy({ ...summary, loss: summary.held_out_loss });
  write('judged', judged.title);
  write('judged-curve', judged.title);
  write('accuracy', judged.text(judged.of === 'loss' ? summary.held_out_loss : summary.accuracy));
  write('best', summary.best === null ? '' : ` · best ${judged.text(summary.best)}`);
  write('loss', loss(summary.loss));
  write('held', summary.held_out_loss === null ? '' : ` · eval ${loss(summary.held_out_loss)}`);
  showReplicas(summary.replicas, facts?.end);
  write('end', ended(facts?.end, news.model));
  at('end').hidden = !facts?.end;
  const waiting = facts && !facts.end ? facts.waiting.map((reason) => `waiting for ${reason}`) : [];
  if (news.trouble) waiting.push(news.trouble);
  if (news.outcome && facts?.end) waiting.push(...news.outcome.warnings);
  write('notice', waiting.join('\n'));
  at('notice').hidden = waiting.length === 0;
  at('stop').hidden = !(news.may_stop && facts && !facts.end);
  write('version', `tau ${news.version}`);
}

// Returns name, format, field (`of`) and highest possible value of the figure for a model's quality: R² if there is a mean
// absolute error, otherwise accuracy. A model that is measured and has no accuracy is judged by its loss.
function judgedBy(scores) {
  const has = (of) => (scores?.[of] ?? null) !== null;
  if (has('loss') && !has('accuracy')) return { name: 'eval loss', title: 'Eval loss', of: 'loss', most: Infinity, text: loss };
  return has('mae')
    ? { name: 'R²', title: 'R²', of: 'accuracy', most: 1, text: (value) => decimal(value, 4) }
    : { name: 'accuracy', title: 'Accuracy', of: 'accuracy', most: 1, text: (value) => percent(value, 2) };
}

// Shows if the replicas agree. During training they differ by the batches under way, so it matters only at the end.
function showReplicas({ equal, of, digest }, end) {
  const agree = end ? end.agree : of > 0 && equal === of;
  const silent = end ? end.agree === undefined : of === 0;
  write('replicas', silent ? UNKNOWN : agree ? 'agree' : end ? 'DIFFER' : 'compared at the end');
  at('replicas').className = end?.agree === false ? 'failed' : '';
  write('digest', agree ? digest.slice(0, 16) : '');
}

// Returns a sentence on the end of a run. `saved` is the client's own copy of the model, if a client serves the page.
function ended(end, saved) {
  if (!end) return '';
  if (end.end === 'failed') return `failed: ${end.reason}`;
  const missing = end.missing.length ? `, without ${end.missing.join(', ')}` : '';
  const early = end.reason === 'trained' ? '' : ` (${end.reason.replace('_', ' ')})`;
  const judged = judgedBy(end);
  const quality = judged.of === 'loss' ? '' : `${judged.name} ${judged.text(end.accuracy)}, `;
  const model = saved ?? end.model;
  return `finished${early}: ${quality}loss ${loss(end.loss)}, `
    + `${count(end.samples)} samples in ${duration(end.seconds)}, `
    + `replicas ${end.agree ? 'agree' : 'DIFFER'}${missing}${model ? `; the model is ${model}` : ''}`;
}

// Shows the settings of an ended run and, once the slider is at its end, its figures.
function showOutcome(outcome, end) {
  at('outcome').hidden = !outcome;
  if (!outcome) return;
  const entry = (term, text, meaning) => {
    const name = make('dt', '', term);
    name.title = meaning;
    return [name, make('dd', '', text)];
  };
  const figures = end ? outcome.figures : [];
  at('figures').replaceChildren(...figures.flatMap((figure) => entry(figure.title, inUnit(figure, figure.value), figure.meaning)));
  at('settings').replaceChildren(...outcome.settings.flatMap(({ key, value, chosen }) => (
    entry(key, chosen ? `${value} (chosen by the nodes)` : value, ''))));
}

function showNodes(nodes, columns) {
  const silent = nodes.filter((node) => node.silent !== null).length;
  write('count', nodes.length ? `${nodes.length - silent} of ${nodes.length} heard` : '');
  at('grid').replaceChildren(...nodes.map((node) => {
    const since = node.silent === null ? '' : ` for ${duration(node.silent)}`;
    const cell = make('div', node.state, make('b', '', node.node), ` ${node.state}${since}`);
    cell.title = [node.address, node.device, node.trouble].filter(Boolean).join('\n');
    return cell;
  }));
  const heading = (text, meaning = '') => {
    const cell = make('th', '', text);
    cell.title = meaning;
    return cell;
  };
  const titles = columns.map((column) => heading(column.title + (column.is_rate ? '/s' : ''), column.meaning));
  at('titles').replaceChildren(heading('node'), heading('state'), heading('device'), ...titles, heading('last trouble'));
  at('nodes').replaceChildren(...nodes.map((node) => {
    const figure = (column, index) => (node.silent === null || column.lasts ? inUnit(column, node.figures[index]) : '');
    const texts = [
      node.node, make('span', node.state, node.silent === null ? node.state : `silent ${duration(node.silent)}`),
      node.device ?? UNKNOWN, ...columns.map(figure), node.trouble ?? '',
    ];
    const row = make('tr', node.silent === null ? '' : 'gone');
    row.append(...texts.map((text) => make('td', '', text)));
    return row;
  }));
}

function showEvents(events) {
  at('events').replaceChildren(...events.slice(-200).reverse().map((event) => {
    const time = make('time', '', new Date(event.time * 1000).toLocaleTimeString());
    return make('li', '', time, make('span', event.grave, event.sentence));
  }));
}

// Draws a chart of each number that the user's code has measured and named. `of` returns the place of an evaluation.
function showNamed(evaluations, of, options) {
  const has = (one, name) => Object.hasOwn(one.named ?? {}, name);
  const names = [...new Set(evaluations.flatMap((one) => Object.keys(one.named ?? {})))].slice(0, NAMED);
  const place = at('named');
  const wanted = JSON.stringify(names);
  if (place.dataset.names !== wanted) {
    place.dataset.names = wanted;
    place.replaceChildren(...names.map((name) => make('figure', 'third',
      make('figcaption', '', make('span', '', name), make('span', 'key held', 'eval'), make('output', '')),
      drawn('svg', { role: 'img', 'aria-label': name }))));
  }
  names.forEach((name, index) => {
    const figure = place.children[index];
    const points = evaluations.filter((one) => has(one, name)).map((one) => [of(one), one.named[name]]);
    const tell = (text) => { figure.querySelector('output').textContent = text; };
    chart(figure.querySelector('svg'), { ...options, series: [{ name: 'held', points, dots: true }], y: plain, tell });
  });
}

// Returns the events that charts mark, with their place on the axis: an event's second of the run is its time minus the
// time of the first step.
function ticks(model, axis) {
  const newest = model.points.at(-1);
  if (!newest || model.begun === null) return [];
  const grave = model.events.filter((event) => event.event === 'silent' || event.event === 'back' || event.grave === 'error');
  return grave.map((event) => {
    const second = event.time - model.begun;
    const point = model.points.find((one) => one[SECONDS] >= second) ?? newest;
    return { x: point[axis], text: event.sentence, kind: event.event === 'back' ? '' : 'bad' };
  });
}

function showCharts(model, choice, nodes) {
  const axis = choice.over === 'samples' ? SAMPLES : SECONDS;
  const x = choice.over === 'samples' ? count : duration;
  const below = choice.over === 'samples' ? 'samples trained' : 'time since the first step';
  const judged = judgedBy(model.evaluations.at(-1));
  const curve = (of) => model.points.filter((point) => point[of] !== null).map((point) => [point[axis], point[of]]);
  const measured = (of) => model.evaluations.map((one) => [one[choice.over], one[of]]);
  const happened = ticks(model, axis);
  const tell = (id) => (text) => write(id, text);
  chart(at('loss-chart'), {
    series: [{ name: 'loss', points: curve(LOSS) }, { name: 'held', points: measured('loss'), dots: true }],
    ticks: happened, log: choice.scale === 'log', x, y: loss, titles: [below, 'loss'], tell: tell('loss-at'),
  });
  chart(at('accuracy-chart'), {
    series: [{ name: 'held', points: measured(judged.of), dots: true }],
    ticks: happened, log: judged.of === 'loss' && choice.scale === 'log', x, y: judged.text, titles: [below, judged.name], most: judged.most, tell: tell('accuracy-at'),
  });
  showNamed(model.evaluations, (one) => one[choice.over], { ticks: happened, x, titles: [below, ''] });
  chart(at('speed-chart'), {
    series: [{ name: 'speed', points: curve(SPEED) }], ticks: happened, x, y: count, from0: true, titles: [below, 'samples/s'], tell: tell('speed-at'),
  });
  const above = (points) => points.filter(([, y]) => y > 0);
  chart(at('bytes-chart'), {
    series: [{ name: 'sent', points: above(curve(SENT)) }, { name: 'dense', points: above(curve(DENSE)) }], log: true, x, y: bytes, titles: [below, 'bytes in all'], tell: tell('bytes-at'),
  });
  // A single node sends nothing to others.
  at('bytes').hidden = nodes.length === 1;
  chart(at('stale-chart'), {
    series: [{ name: 'staleness', points: curve(STALENESS) }], x, y: (value) => decimal(value, 2), from0: true, titles: [below, 'rounds'], tell: tell('stale-at'),
  });
}
