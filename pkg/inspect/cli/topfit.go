package cli

import (
	"slices"
	"unicode/utf8"
)

// How many columns of a terminal a table of Services leaves to namespace and name together, or to all
// that they have: below niceNames its headings and gaps are shortened, below leastNames figures are left
// out, the last ones first.
const (
	niceNames  = 24
	leastNames = 12
)

// narrowHeadings are those that are longer than most figures below them.
var narrowHeadings = map[string]string{"CONNECTIONS/S": "CONN/S", "PACKETS/S": "PKT/S"}

// fitTop makes a table of Services (topServices) fit a terminal. Figures are whole: what is too long of
// namespace and name is taken out of their middle, for names often differ at the end.
func fitTop(t *table, width int) {
	if !t.namesFit(width, niceNames) {
		t.narrow = true
		for i, heading := range t.rows[0] {
			if narrow, ok := narrowHeadings[heading]; ok {
				t.rows[0][i] = narrow
			}
		}
	}
	for !t.namesFit(width, leastNames) && len(t.rows[0]) > 3 {
		t.dropLast()
	}
	widths := t.widths()
	namespace, name := shareColumns(max(0, t.namesRoom(width)), widths[0], widths[1])
	for i, row := range t.rows {
		row[0], row[1] = elide(row[0], namespace), elide(row[1], name)
		if i == 0 {
			row[0], row[1] = "NAMESPACE"[:min(namespace, 9)], "NAME"[:min(name, 4)]
		}
	}
}

// fitBackends makes a table of backends (topBackends) fit a terminal. Figures are whole: columns furthest right are left out.
func fitBackends(t *table, width int) {
	t.narrow = t.width() > width
	for t.width() > width && len(t.rows[0]) > 1 {
		t.dropLast()
	}
}

// dropLast leaves out the last column.
func (t *table) dropLast() {
	for i, row := range t.rows {
		t.rows[i] = row[:len(row)-1]
	}
}

// widths returns how many columns of the terminal each column of the table has, without the gap.
func (t *table) widths() []int {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], columns(cell))
		}
	}
	return widths
}

// width returns how many columns of the terminal the table has.
func (t *table) width() int {
	width := len(t.indent) - t.gap()
	for _, w := range t.widths() {
		width += w + t.gap()
	}
	return width
}

// namesRoom returns what the figures leave to namespace and name.
func (t *table) namesRoom(width int) int {
	for _, w := range t.widths()[2:] {
		width -= t.gap() + w
	}
	return width - t.gap()
}

// namesFit reports whether namespace and name have so many columns, or all that they need.
func (t *table) namesFit(width, want int) bool {
	widths := t.widths()
	return t.namesRoom(width) >= min(want, widths[0]+widths[1])
}

// shareColumns shares out room among two columns: half for each, and more where the other needs less.
func shareColumns(room, first, second int) (int, int) {
	half := room / 2
	switch {
	case first+second <= room:
		return first, second
	case first <= half:
		return first, room - first
	case second <= room-half:
		return room - second, second
	}
	return half, room - half
}

// elide returns a text of so many columns at most, its middle taken out.
func elide(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	if most <= 0 {
		return ""
	}
	runes := []rune(text)
	begin := most / 2
	return string(slices.Concat(runes[:begin], []rune("…"), runes[len(runes)-(most-1-begin):]))
}

// columns is how many columns a text has at a terminal: names and figures have no wide characters.
func columns(text string) int { return utf8.RuneCountInString(text) }
