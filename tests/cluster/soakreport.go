package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/tests/programs"
)

// soakHeading begins the section of a soak, the last of RESULTS.md.
const soakHeading = "\n## Soak\n"

// soakReport is what a soak tells at its end.
type soakReport struct {
	settings
	took        time.Duration
	disturbed   map[string]*disturbed
	levels      []level
	flooded     int // connections that floods began
	outOfMemory int // agents that the kernel killed
	faults      []string
}

// disturbed is what was seen of all disturbances of one kind.
type disturbed struct {
	seen
	times   int
	longest time.Duration
}

func newSoakReport(s settings) soakReport {
	return soakReport{settings: s, disturbed: make(map[string]*disturbed)}
}

func (r *soakReport) add(name string, took time.Duration, s seen) {
	d, ok := r.disturbed[name]
	if !ok {
		d = &disturbed{}
		r.disturbed[name] = d
	}
	d.add(&disturbed{s, 1, took})
}

// write puts the section into RESULTS.md and shows it. The error says that there were faults.
func (r *soakReport) write() error {
	section := r.section()
	fmt.Print(section)
	root, err := programs.Root()
	if err != nil {
		return err
	}
	if err := changeResults(root, func(p *resultParts) { p.soak = []byte(section) }); err != nil {
		return err
	}
	if len(r.faults) > 0 {
		return errSoakFaults
	}
	return nil
}

// resultParts are the parts of RESULTS.md, in their order: upstream's tests, NetworkPolicies and
// the soak. The last two begin with their headings.
type resultParts struct{ upstream, policy, soak []byte }

// changeResults writes RESULTS.md anew, with the parts as change leaves them.
func changeResults(root string, change func(*resultParts)) error {
	path := filepath.Join(root, "tests/cluster/RESULTS.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var parts resultParts
	parts.upstream, parts.soak = cutAt(page, soakHeading)
	parts.upstream, parts.policy = cutAt(parts.upstream, policyHeading)
	change(&parts)
	return os.WriteFile(path, slices.Concat(parts.upstream, parts.policy, parts.soak), 0o644)
}

// cutAt returns the parts of a page before a heading and from it on.
func cutAt(page []byte, heading string) (before, from []byte) {
	if i := bytes.Index(page, []byte(heading)); i >= 0 {
		return page[:i], page[i:]
	}
	return page, nil
}

func (r *soakReport) section() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `%s
`+"`make soak SOAK=%s SEED=%d`"+` disturbed a cluster of %d nodes (pods connected by %s) for %s: %s.
Floods began %d connections; the kernel killed %d agents for want of memory.

`, soakHeading, shortDuration(r.Duration), r.Seed, r.Nodes, r.Fabric, r.took.Round(time.Second), r.verdict(), r.flooded, r.outOfMemory)
	row(&b, "disturbance", "times", "longest", "requests", "by UDP", "of them sent again", "failed", "of them explained")
	row(&b, "---", slices.Repeat([]string{"---"}, 7)...)
	var total disturbed
	for _, d := range disturbances {
		if one, ok := r.disturbed[d.name]; ok {
			one.row(&b, d.name)
			total.add(one)
		}
	}
	total.row(&b, "all")
	b.WriteString(`
A reboot explains failures of new connections until 10 s after the node is back, and of
established ones that lead through it. Without endpoints, requests to that Service fail. Nothing
else explains any.
Clocks were left alone: CLOCK_REALTIME is the machine's, also in a time namespace.

`)
	row(&b, "node", "figure", "samples", "second quarter", "last quarter", "")
	row(&b, "---", slices.Repeat([]string{"---"}, 5)...)
	for _, l := range r.levels {
		row(&b, l.node, l.name, fmt.Sprint(l.samples), fmt.Sprintf("%.1f", l.second), fmt.Sprintf("%.1f", l.last), l.verdict)
	}
	for i, fault := range r.faults {
		if i == 0 {
			b.WriteString("\nFaults:\n\n")
		}
		line, _, _ := strings.Cut(fault, "\n")
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.String()
}

func (d *disturbed) row(b *bytes.Buffer, name string) {
	row(b, name, fmt.Sprint(d.times), d.longest.Round(time.Second).String(),
		fmt.Sprint(d.requests+d.datagrams), fmt.Sprint(d.datagrams), fmt.Sprint(d.resent), fmt.Sprint(d.failed), fmt.Sprint(d.explained))
}

func (d *disturbed) add(o *disturbed) {
	d.seen.add(o.seen)
	d.times += o.times
	d.longest = max(d.longest, o.longest)
}

func (r *soakReport) verdict() string {
	switch len(r.faults) {
	case 0:
		return "no fault"
	case 1:
		return "**1 fault**"
	default:
		return fmt.Sprintf("**%d faults**", len(r.faults))
	}
}

// shortDuration leaves out the parts that are zero, 2h rather than 2h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
