package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// format is how to print.
type format string

// The formats.
const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

var formats = []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML)}

// String is the flag's value.
func (f *format) String() string { return string(*f) }

// Set parses the flag.
func (f *format) Set(s string) error { return f.set(s, formats) }

// set parses one of some formats.
func (f *format) set(s string, allowed []string) error {
	if err := oneOf(s, allowed); err != nil {
		return err
	}
	*f = format(s)
	return nil
}

// oneOf returns the error of a flag's value that is none of those allowed.
func oneOf(value string, allowed []string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
	}
	return nil
}

// Type is shown in the help.
func (f *format) Type() string { return "format" }

// print writes v as JSON or YAML, or for people what text returns.
func (c *command) print(v any, text func(wide bool) string) error {
	switch c.format {
	case formatJSON:
		return c.printJSON(v)
	case formatYAML:
		out, err := yamlOf(v)
		if err != nil {
			return err
		}
		_, err = c.Out.Write(out)
		return err
	}
	_, err := io.WriteString(c.Out, escape(text(c.format == formatWide)))
	return err
}

// printJSON writes v as JSON. A list, which may be large, it writes item by item, with the bytes that
// [json.MarshalIndent] returns of all: the text of it all need not be in memory.
func (c *command) printJSON(v any) error {
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice || list.Len() == 0 {
		out, err := json.MarshalIndent(v, "", "  ")
		if err == nil {
			_, err = c.Out.Write(append(escapeJSON(out), '\n'))
		}
		return err
	}
	out := bufio.NewWriterSize(c.Out, 64<<10)
	var item bytes.Buffer
	encoder := json.NewEncoder(&item)
	encoder.SetIndent("  ", "  ")
	before := "[\n  "
	for i := range list.Len() {
		item.Reset()
		if err := encoder.Encode(list.Index(i).Addr().Interface()); err != nil {
			return err
		}
		out.WriteString(before) // an error is that of the next, too
		if _, err := out.Write(escapeJSON(bytes.TrimSuffix(item.Bytes(), []byte("\n")))); err != nil {
			return err
		}
		before = ",\n  "
	}
	out.WriteString("\n]\n")
	return out.Flush()
}

// printItem writes v as one of many: as JSON in a line, as a YAML document, or for people as a line,
// which text returns.
func (c *command) printItem(v any, text func(wide bool) string) error {
	var out []byte
	var err error
	switch c.format {
	case formatJSON:
		out, err = jsonLine(v)
	case formatYAML:
		out, err = yamlOf(v)
		out = append([]byte("---\n"), out...)
	default:
		line := strings.ReplaceAll(text(c.format == formatWide), "\n", `\u000a`) // it could show as another item
		out = []byte(escape(line) + "\n")
	}
	if err != nil {
		return err
	}
	_, err = c.Out.Write(out)
	return err
}

// jsonLine returns v as JSON in a line.
func jsonLine(v any) ([]byte, error) {
	out, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(escapeJSON(out), '\n'), nil
}

// yamlOf returns v as YAML. Like [yaml.Marshal] it makes it of JSON, in which YAML must not have the
// characters that encoding/json leaves as they are. The YAML is that JSON where it would have some of
// them itself: YAML leaves format characters as they are.
func yamlOf(v any) ([]byte, error) {
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	flow := escape(string(out))
	if out, err = yaml.JSONToYAML([]byte(flow)); err == nil && escape(string(out)) != string(out) {
		out = []byte(flow + "\n")
	}
	return out, err
}

// escape returns a text in which control and format characters, and bytes that are no UTF-8, are escaped,
// for a terminal would obey them, or show what follows in another order: texts come from objects of
// tenants, from processes, and from other nodes. YAML reads what is escaped as the same character.
func escape(text string) string {
	return escapeBy(text, func(r rune) string {
		if r > 0xffff {
			return fmt.Sprintf("\\U%08x", r)
		}
		return fmt.Sprintf("\\u%04x", r)
	})
}

// escapeJSON is escape for JSON, which stays the same value: what is escaped is in strings, and
// encoding/json has done so below U+0020 alone.
func escapeJSON(data []byte) []byte {
	if !bytes.ContainsFunc(data, invisible) {
		return data // of a large table no copy is made
	}
	return []byte(escapeBy(string(data), func(r rune) string {
		if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
			return fmt.Sprintf("\\u%04x\\u%04x", high, low)
		}
		return fmt.Sprintf("\\u%04x", r)
	}))
}

// escapeBy returns a text in which what is invisible is written as as says, and bytes that are no UTF-8
// are as in Go.
func escapeBy(text string, as func(rune) string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, invisible) {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		switch _, size := utf8.DecodeRuneInString(text[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, "\\x%02x", text[i])
		case invisible(r):
			out.WriteString(as(r))
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// invisible reports whether a character is escaped: control and format characters (Cc, Cf, those
// of bidirectional text among the latter), and separators of lines. U+FFFE and U+FFFF are none, and
// YAML is not read with them.
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && r != '\n' || r == 0xfffe || r == 0xffff
}

// table is rows of aligned columns under a heading.
type table struct {
	rows   [][]string
	indent string
	narrow bool // one blank between columns, not three
}

func newTable(heading ...string) *table { return &table{rows: [][]string{heading}} }

// add adds a row. An empty cell shows as "-".
func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = orDash(cell)
	}
	t.rows = append(t.rows, cells)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// gap is how many blanks are between columns.
func (t *table) gap() int {
	if t.narrow {
		return 1
	}
	return 3
}

// String returns the table; no line ends in blanks.
func (t *table) String() string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, t.gap(), ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintf(w, "%s%s\n", t.indent, strings.Join(row, "\t"))
	}
	w.Flush() // to memory
	return out.String()
}

// maxShown is how many items of a cell a table that is not wide shows.
const maxShown = 3

// list joins the items of a cell.
func list(items []string, wide bool) string {
	if len(items) > maxShown+1 && !wide {
		return fmt.Sprintf("%s,+%d", strings.Join(items[:maxShown], ","), len(items)-maxShown)
	}
	return strings.Join(items, ",")
}

func number[T ~int | ~int64 | ~uint16 | ~uint32 | ~uint64](n T) string { return fmt.Sprint(n) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// memory returns bytes in the binary unit that fits.
func memory(bytes uint64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes < 1<<10:
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
}
