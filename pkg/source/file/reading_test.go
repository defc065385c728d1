package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// watched is a folder that notes what is read from it.
type watched struct {
	folder
	names []string
}

func (w *watched) read(name string) ([]byte, error) {
	w.names = append(w.names, name)
	return w.folder.read(name)
}

// drain returns what was read since the last call.
func (w *watched) drain() []string {
	names := w.names
	w.names = nil
	return names
}

// TestOneFileIsRead changes one file of many: no other is read, decoded or written to the
// state file. After a restart none is decoded twice.
func TestOneFileIsRead(t *testing.T) {
	const files = 50
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	for i := range files {
		write(t, opts.Dir, fmt.Sprintf("%02d.yaml", i), portYAML(fmt.Sprintf("s-%d", i), 80))
	}
	s, sink, dir := newWatched(t, opts)
	scan(t, s)
	if n := s.reading.files; n != files {
		t.Fatalf("%d files decoded at first, want %d", n, files)
	}
	dir.drain()
	sink.drain()
	before := stateSize(t, opts)

	write(t, opts.Dir, "07.yaml", portYAML("s-7", 8080))
	scan(t, s)
	// What is new in it is read for the state file once more.
	if names := slices.Compact(dir.drain()); !slices.Equal(names, []string{"07.yaml"}) || s.reading.files != 1 {
		t.Errorf("%v were read and %d files decoded, want 07.yaml alone", names, s.reading.files)
	}
	if updates := sink.drain(); len(updates) != 1 || len(updates[0].PutServices) != 1 {
		t.Errorf("updates %+v, want one of one Service", updates)
	}
	if grown := stateSize(t, opts) - before; grown <= 0 || grown > 4*before/files {
		t.Errorf("the state grew from %d by %d bytes, want those of one file", before, grown)
	}
	scan(t, s)
	if names := dir.drain(); len(names) > 0 {
		t.Errorf("%v were read without a change", names)
	}

	s.end()
	s, _, dir = newWatched(t, opts)
	scan(t, s)
	if s.reading.files != files || len(dir.drain()) != files {
		t.Errorf("%d files decoded after a restart, want %d, each read once", s.reading.files, files)
	}
}

func newWatched(t *testing.T, opts Options) (*Source, *recorder, *watched) {
	s, sink := newSource(t, opts)
	dir := &watched{folder: &directory{path: opts.Dir}}
	s.folder = dir
	return s, sink, dir
}

func stateSize(t *testing.T, opts Options) int64 {
	t.Helper()
	info, err := os.Stat(opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestFreshFileIsReadAgain writes a file twice within what the clock of a file system tells
// apart: the second content counts, though the file looks the same.
func TestFreshFileIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", portYAML("a", 81))
	s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16")})
	s.folder = sameLook{&directory{dir, time.Hour}}
	scan(t, s)
	write(t, dir, "a.yaml", portYAML("a", 82))
	scan(t, s)
	if got := sink.services()["default/a"].Ports[0].Port; got != 82 {
		t.Errorf("port %d, want 82", got)
	}
}

// sameLook is a folder in which no file that can be told looks different.
type sameLook struct{ folder }

func (f sameLook) list() (map[string]look, error) {
	found, err := f.folder.list()
	for name, l := range found {
		if l != (look{}) {
			found[name] = look{size: 1}
		}
	}
	return found, err
}

// TestProgress tells of a long reading every few seconds, and of a short one not at all.
func TestProgress(t *testing.T) {
	var log strings.Builder
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	defer func() {
		klog.Flush()
		klog.LogToStderr(true)
	}()
	now := time.Unix(1000, 0)
	r := newReading("DIR", 3)
	r.now = func() time.Time { return now }
	r.start, r.told = now, now
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		r.object()
	}
	klog.Flush()
	if n := strings.Count(log.String(), "Reading manifests"); n != 2 {
		t.Errorf("10 s are told of in %d lines, want 2:\n%s", n, &log)
	}
	if want := `dir="DIR" files=0 of=3 objects=100 bytes=0 took="10s"`; !strings.Contains(log.String(), want) {
		t.Errorf("no %s in\n%s", want, &log)
	}
}
