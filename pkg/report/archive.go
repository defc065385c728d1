// Package report collects what a bug report needs into one archive: what the caller adds, and what
// the kernel of this machine and the agent say. It has no secrets, whatever it reads, and is bounded
// in size and time; what cannot be read is named in the archive's index, and the rest still comes.
package report

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/beeline-lb/beeline/pkg/netns"
)

// The bounds of an archive unless [Options] say otherwise.
const (
	DefaultTimeout = time.Minute
	partTimeout    = 30 * time.Second
	grace          = 2 * time.Second
	maxPart        = 4 << 20
	maxTotal       = 32 << 20 // before it is compressed
)

// Part is a file of the archive.
type Part struct {
	Name string
	// Read writes the content, also beside an error; writing never fails. It runs in the network
	// namespace of the caller of [Write], on another thread, and is given up soon after ctx has ended.
	Read func(ctx context.Context, to io.Writer) error
}

// whole returns the [Part.Read] that writes what another function returns.
func whole(read func(context.Context) ([]byte, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, to io.Writer) error {
		content, err := read(ctx)
		_, _ = to.Write(content)
		return err
	}
}

// beginning keeps the beginning of what is written: a part may be many times what the archive has of it.
type beginning struct {
	kept []byte
	size int // of all
	room int // for kept
}

// Write never fails.
func (b *beginning) Write(text []byte) (int, error) {
	b.size += len(text)
	b.kept = append(b.kept, text[:min(len(text), b.room-len(b.kept))]...)
	return len(text), nil
}

// Options configure [Write].
type Options struct {
	// Title is the first line of the index.
	Title string
	// Time is that of the files.
	Time time.Time
	// Timeout is how long all parts may take; 0 is [DefaultTimeout].
	Timeout time.Duration

	part     time.Duration // how long one may take
	grace    time.Duration // how much longer than its context
	maxPart  int           // bytes
	maxTotal int
}

// Missing is a part that is not in the archive, or not whole.
type Missing struct {
	Name string
	Err  error
}

// row is a line of the index.
type row struct {
	name    string
	size    int
	took    time.Duration
	removed int // secrets
	notes   []string
}

// archive is one that is being written.
type archive struct {
	Options
	to      *tar.Writer
	dir     string
	caller  *netns.Namespace
	total   int
	rows    []row
	missing []Missing
}

// Write writes an archive (tar.gz) whose files are in the folder dir, the index among them, and
// returns the parts that could not be read. The error is one of writing, or the cause of ctx's end,
// with which the archive ends anywhere.
func Write(ctx context.Context, to io.Writer, dir string, parts []Part, o Options) ([]Missing, error) {
	o.part, o.grace = cmp.Or(o.part, partTimeout), cmp.Or(o.grace, grace)
	o.maxPart, o.maxTotal = cmp.Or(o.maxPart, maxPart), cmp.Or(o.maxTotal, maxTotal)
	// What was read when the time is over is still to be cleaned of secrets.
	timeout := cmp.Or(o.Timeout, DefaultTimeout)
	cleaning, cancelCleaning := context.WithTimeout(ctx, timeout+2*o.grace)
	defer cancelCleaning()
	reading, cancelReading := context.WithTimeout(cleaning, timeout)
	defer cancelReading()
	caller, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer caller.Close()
	zip := gzip.NewWriter(to)
	a := &archive{Options: o, to: tar.NewWriter(zip), dir: dir, caller: caller}
	for _, p := range parts {
		if err := a.add(reading, cleaning, p); err != nil {
			return a.missing, err
		}
		if ctx.Err() != nil {
			return a.missing, context.Cause(ctx)
		}
	}
	return a.missing, errors.Join(a.put("index.txt", a.index()), a.to.Close(), zip.Close())
}

// add reads a part, removes secrets until the second context ends, and writes it.
func (a *archive) add(reading, cleaning context.Context, p Part) error {
	start := time.Now()
	room := min(a.maxPart, a.maxTotal-a.total)
	read, err := a.read(reading, p, room+maxSecret) // what is far beyond the room need not be looked at
	size, cut := read.size, read.size > len(read.kept)
	content, count, errClean := withoutSecrets(cleaning, read.kept)
	if errClean != nil {
		size, cut, err = 0, false, errors.Join(err, errors.New("given up: removing what looks like a secret took too long"))
	}
	r := row{name: p.Name, took: time.Since(start), removed: count}
	if err != nil {
		message, _, _ := withoutSecrets(context.Background(), []byte(err.Error())) // short, so it may have no end
		clean := oneLine(message)
		a.missing = append(a.missing, Missing{p.Name, errors.New(clean)})
		r.notes = append(r.notes, "FAILED: "+clean)
	}
	if r.removed > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d removed that look like secrets", r.removed))
	}
	if cut {
		room = min(room, max(0, len(content)-maxSecret)) // at the end there may be a part of one
	}
	if len(content) > room {
		err := fmt.Errorf("cut after %d of %d bytes", room, max(size, len(content)))
		a.missing = append(a.missing, Missing{p.Name, err})
		r.notes = append(r.notes, err.Error())
		content = content[:room]
	}
	a.total += len(content)
	r.size = len(content)
	a.rows = append(a.rows, r)
	if len(content) == 0 {
		return nil
	}
	return a.put(p.Name, content)
}

// oneLine returns a message of several lines as one.
func oneLine(message []byte) string {
	return string(bytes.Join(bytes.Fields(message), []byte(" ")))
}

// read returns what a part has read when it is done, of which so many bytes are kept, or else fails in time.
func (a *archive) read(ctx context.Context, p Part, room int) (beginning, error) {
	if ctx.Err() != nil {
		return beginning{}, errors.New("not read: the time for the report is over")
	}
	ctx, cancel := context.WithTimeout(ctx, a.part)
	defer cancel()
	type result struct {
		beginning
		err error
	}
	done := make(chan result, 1)
	go func() {
		r := result{beginning: beginning{room: room}}
		r.err = a.inNamespace(func() (err error) {
			defer func() {
				if fault := recover(); fault != nil {
					err = fmt.Errorf("panic: %v", fault)
				}
			}()
			return p.Read(ctx, &r.beginning)
		})
		done <- r
	}()
	select {
	case r := <-done:
		return r.beginning, r.err
	case <-ctx.Done():
	}
	late := time.NewTimer(a.grace)
	defer late.Stop()
	select {
	case r := <-done:
		return r.beginning, r.err
	case <-late.C:
		return beginning{}, errors.New("given up: it took too long")
	}
}

// inNamespace calls fn on a thread in the caller's network namespace. Who may not enter one need not
// where all threads are in the same.
func (a *archive) inNamespace(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Current()
	if err != nil {
		return err
	}
	defer here.Close()
	if here.Name() == a.caller.Name() {
		return fn()
	}
	return a.caller.Run(fn)
}

// put writes a file.
func (a *archive) put(name string, content []byte) error {
	header := &tar.Header{Name: a.dir + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.Time}
	if err := a.to.WriteHeader(header); err != nil {
		return err
	}
	_, err := a.to.Write(content)
	return err
}

// index lists the parts with what is to be said about each.
func (a *archive) index() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s\n%d parts, %d of them not whole or not there.\n\n", a.Title, len(a.rows), a.incomplete())
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FILE\tBYTES\tTOOK\tNOTES")
	for _, r := range a.rows {
		notes := cmp.Or(strings.Join(r.notes, "; "), "-")
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.name, r.size, r.took.Round(time.Millisecond), notes)
	}
	w.Flush() // to memory
	return out.Bytes()
}

// incomplete counts the parts that are missing at least in part.
func (a *archive) incomplete() int {
	names := make(map[string]bool)
	for _, m := range a.missing {
		names[m.Name] = true
	}
	return len(names)
}
