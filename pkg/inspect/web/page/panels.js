// What is beside the list: sums, the chosen Service, where connections go, refusals, maps.

// Of both directions, where they are counted.
const packets = (traffic) => Math.round(traffic.toBackend.packetsPerSecond + traffic.toClient.packetsPerSecond);
const bytes = (traffic) => Math.round(traffic.toBackend.bytesPerSecond + traffic.toClient.bytesPerSecond);

function showSums(answer) {
  const sums = [
    ['connections a second', rate(answer.sum.connectionsPerSecond)],
    ['refused or dropped a second', rate(answer.sum.refusedPerSecond), answer.sum.refusedPerSecond > 0],
    ['active flows', amount(answer.sum.flows)],
    ...(answer.sum.traffic ? [['packets a second', amount(packets(answer.sum.traffic))], ['bytes a second', amount(bytes(answer.sum.traffic))]] : []),
    ['Services', amount(answer.services)],
    ['backends', amount(answer.traffic.backends)],
  ];
  if (answer.evictedPerSecond > 0) sums.push(['established flows evicted a second', rate(answer.evictedPerSecond), true]);
  put(at('sums'), sums.map(([what, value, bad]) => element('div', { class: bad && 'bad' }, element('dt', {}, what), element('dd', {}, value))));
}

// nodeOf says where a backend is.
const nodeOf = (backend) => backend.onNode ? 'this node' : backend.node || 'another node';

function showChosen(answer) {
  const body = at('chosen-body'), service = answer.chosen;
  at('close').hidden = !service;
  at('chosen-title').textContent = service ? `Service ${nameOf(service)}` : 'Backends';
  if (!service) {
    put(body, quiet('Choose a Service to see its backends, and the shares of active and of new connections that each has beside the one that its algorithm intends.'));
    return;
  }
  if (!service.served) {
    put(body, quiet('It is not served on this node.'));
    return;
  }
  const connections = element('div'), refused = element('div');
  put(body, element('h3', {}, 'Connections a second'), connections,
    service.refusedHistory?.some((value) => value > 0) ? [element('h3', {}, 'Refused or dropped a second'), refused] : [],
    service.ports.map(showPort),
    service.morePorts ? quiet(`and ${plural(service.morePorts, 'port')} more, which beeline top shows`) : []);
  chart(connections, 'blue', 'Connections a second', steps(answer.history, service.history), view.span);
  if (refused.isConnected) chart(refused, 'red', 'Refused or dropped a second', steps(answer.history, service.refusedHistory), view.span);
}

function shareText(backend) {
  const parts = [], seen = backend.newShare !== undefined;
  if (backend.share !== undefined) parts.push(`${seen ? 'active ' : ''}${percent(backend.share)}`);
  if (seen) parts.push(`new ${percent(backend.newShare)}`);
  if (backend.intended !== undefined) parts.push(`intended ${percent(backend.intended)}`);
  return parts.join(', ') || '-';
}

function showPort(port) {
  const title = element('h3', {}, `Port ${portOf(port)}: ${port.algorithm}, ${rate(port.connectionsPerSecond)} connections/s, ` +
    `${rate(port.refusedPerSecond)} refused/s, ${plural(port.flows, 'active flow')}` +
    (port.traffic ? `, ${amount(packets(port.traffic))} packets/s, ${amount(bytes(port.traffic))} bytes/s` : ''));
  const parts = [title, (port.noBackends || []).map((why) => quiet(`Set ${why}.`))];
  if (port.backends.length) {
    const counted = port.traffic ? [['Bytes/s', 'number']] : [];
    const seen = port.backends.some((b) => b.newConnections !== undefined) ? [['New', 'number']] : [];
    parts.push(table('', [['Backend'], ['Active', 'number'], ...seen, ...counted, ['Share', 'share']],
      port.backends.map((b) => [
        [b.address, element('div', { class: 'quiet' }, nodeOf(b))], amount(b.connections),
        ...seen.map(() => amount(b.newConnections || 0)),
        ...counted.map(() => amount(bytes(b.traffic))),
        [bar([['full', b.newShare ?? b.share ?? 0]], b.intended), shareText(b)],
      ])));
  }
  if (port.moreBackends) parts.push(quiet(`and ${plural(port.moreBackends, 'backend')} more, with fewer connections`));
  return parts;
}

// showPlaces shows how many connections go to this node, and to others; nothing when there are none.
function showPlaces(title, places) {
  const all = places.onNode + places.elsewhere;
  if (!all) return [];
  return [
    element('h3', {}, title),
    bar([['full', places.onNode / all], ['other', places.elsewhere / all]]),
    element('ul', { class: 'key' },
      element('li', {}, swatch('full'), `this node ${percent(places.onNode / all)}, ${amount(places.onNode)}`),
      element('li', {}, swatch('other'), `other nodes ${percent(places.elsewhere / all)}, ${amount(places.elsewhere)}`)),
  ];
}

function showTraffic(traffic) {
  const told = traffic.newConnections, parts = [];
  if (told.since) parts.push(showPlaces(`New connections since ${clock(told.since)}`, traffic.new));
  if (told.leftOut) parts.push(quiet(`These are a sample: ${plural(told.leftOut, 'new connection')} left out.`));
  if (told.notHeard) parts.push(quiet(`New connections are not counted now: ${told.notHeard}.`));
  parts.push(showPlaces('Active connections', traffic.active));
  if (traffic.busy.length) {
    parts.push(table('Backends with most new connections, then with most active ones',
      [['Backend'], ['Service'], ['New', 'number'], ['Active', 'number']], traffic.busy.map((b) => [
        [b.address, element('div', { class: 'quiet' }, nodeOf(b))],
        nameButton(`${b.service.namespace}/${b.service.service}`), amount(b.newConnections || 0), amount(b.connections)])));
  } else {
    parts.push(quiet('No new connection was seen while the page is open, and no active one is counted with a backend.'));
  }
  put(at('traffic'), parts);
}

// clientOf names a client: its address, its process, or both.
function clientOf(event) {
  const names = [event.client || [], event.pid ? `${event.command}[${event.pid}]` : []].flat();
  return (names.length ? names : ['a socket']).map((name) => element('div', {}, name));
}

function eventRow(event) {
  if (event.leftOut) return [clock(event.time), quiet(`and ${amount(event.leftOut)} more at this time`), ''];
  const service = event.service?.service ? nameButton(`${event.service.namespace}/${event.service.service}`) : [];
  return [
    clock(event.time), [clientOf(event), element('div', {}, `→ ${event.serviceAddress || '-'} ${event.protocol}`), service],
    [`${event.kind}: ${event.reason}`, element('div', { class: 'quiet' }, event.explanation || '')],
  ];
}

function showRefusals(refusals) {
  const since = `since ${clock(refusals.since)}, the latest first`, parts = [];
  if (refusals.notHeard) parts.push(quiet(`Single refusals are not known now: ${refusals.notHeard}.`));
  if (refusals.events.length) {
    parts.push(table('One by one, while the page is open, the latest first',
      [['Time', 'word'], ['Client → Service'], ['Reason']], refusals.events.map(eventRow)));
  }
  if (refusals.reasons.length || refusals.ports.length) parts.push(showCounted(refusals, since));
  else if (!refusals.events.length) parts.push(quiet(`Nothing was refused or dropped since ${clock(refusals.since)}.`));
  put(at('refusals'), parts);
}

// showCounted shows what counters say of refusals.
function showCounted(refusals, since) {
  return [
    table(`By reason, of the whole node, ${since}`, [['Reason'], ['Effect', 'word'], ['Count', 'number'], ['Last', 'number']],
      refusals.reasons.map((r) => [[r.reason, element('div', { class: 'quiet' }, r.meaning)], r.effect, amount(r.count), clock(r.last)])),
    table(`By Service, ${since}`, [['Service'], ['Port'], ['Count', 'number'], ['Last', 'number']],
      refusals.ports.map((p) => [
        [nameButton(`${p.namespace}/${p.service}`), (p.noBackends || []).map((why) => element('div', { class: 'quiet' }, why))],
        portOf(p), amount(p.count), clock(p.last)])),
    refusals.morePorts ? quiet(`and ${plural(refusals.morePorts, 'port')} more`) : [],
  ];
}

function showMaps(maps) {
  put(at('maps'), table('', [['Map'], ['Entries', 'number'], ['Full', 'share']], maps.map((m) => [
    m.name, `${amount(m.used)} of ${amount(m.size)}`, [bar([[m.fill > 0.9 ? 'high' : 'full', Math.min(m.fill, 1)]]), percent(m.fill)]])));
}
