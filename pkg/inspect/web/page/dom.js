// Elements. Strings become text: what a tenant names a Service is never markup.

function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function drawing(name, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity));
  return node;
}

const at = (id) => document.getElementById(id);

// put replaces what an element has. What has the focus keeps it: the new element with the same
// data-key gets it.
function put(node, ...children) {
  const key = node.contains(document.activeElement) && document.activeElement.dataset.key;
  node.replaceChildren(...children.flat(Infinity));
  if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// table returns a table; a column is [heading, class], a row is its cells, the first is its heading.
function table(caption, columns, rows) {
  return element('table', {},
    caption ? element('caption', {}, caption) : [],
    element('thead', {}, element('tr', {}, columns.map(([text, kind]) => element('th', { scope: 'col', class: kind }, text)))),
    element('tbody', {}, rows.map((cells) => element('tr', {}, cells.map((cell, i) =>
      element(i ? 'td' : 'th', { class: columns[i][1], scope: i ? undefined : 'row' }, cell))))));
}

const quiet = (text) => element('p', { class: 'quiet' }, text);
const plural = (n, thing) => `${amount(n)} ${thing}${n === 1 ? '' : 's'}`;
const amount = (n) => n.toLocaleString('en', { maximumFractionDigits: 0 });
const rate = (n) => n.toLocaleString('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const clock = (time) => new Date(time).toLocaleTimeString('en-GB');
const nameOf = (service) => `${service.namespace}/${service.name}`;
const portOf = (port) => `${port.port}/${port.protocol} ${port.family}`;

// nameButton chooses a Service.
function nameButton(name, text) {
  return element('button', { type: 'button', class: 'link', 'data-key': name, onclick: () => choose(name) }, text || name);
}
