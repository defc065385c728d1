// The list of Services. A row is kept as long as its Service is shown.

const rows = new Map();

function newRow(name) {
  const cells = {
    connections: element('td', { class: 'number' }), spark: element('td', { class: 'spark' }),
    refused: element('td', { class: 'number refused' }), flows: element('td', { class: 'number' }),
    backends: element('td', { class: 'number roomy' }),
  };
  return { cells, node: element('tr', {}, element('th', { scope: 'row' }, nameButton(name)), Object.values(cells)) };
}

function showServices(answer) {
  const shown = answer.rows.map((service) => {
    const name = nameOf(service);
    const row = rows.get(name) || newRow(name);
    row.cells.connections.textContent = rate(service.connectionsPerSecond);
    row.cells.spark.replaceChildren(spark(service.history));
    row.cells.refused.textContent = rate(service.refusedPerSecond);
    row.cells.flows.textContent = amount(service.flows);
    row.cells.backends.textContent = amount(service.backends);
    row.node.classList.toggle('bad', service.refusedPerSecond > 0);
    row.node.setAttribute('aria-current', name === view.service);
    return [name, row];
  });
  rows.clear();
  for (const [name, row] of shown) rows.set(name, row);
  const body = at('services').tBodies[0], nodes = shown.map(([, row]) => row.node);
  if (nodes.length !== body.rows.length || nodes.some((node, i) => node !== body.rows[i])) put(body, nodes);

  view.offset = answer.offset;
  const last = answer.offset + answer.rows.length;
  at('shown').textContent = answer.matching ? `${amount(answer.offset + 1)} to ${amount(last)} of ${amount(answer.matching)}`
    : view.filter ? `no Service with “${view.filter}”` : 'no Service is served';
  at('previous').disabled = answer.offset === 0;
  at('next').disabled = last >= answer.matching;
  view.pageSize = answer.pageSize;
}
