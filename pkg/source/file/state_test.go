package file

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestStateFile checks that the state is private to its user, that no other file
// is left beside it, and that what cannot be read is rejected by name.
func TestStateFile(t *testing.T) {
	dir, stateDir := t.TempDir(), t.TempDir()
	path := filepath.Join(stateDir, "state.json")
	opts := Options{Dir: dir, StateFile: path, ServiceRanges: prefixes("10.96.0.0/16")}
	write(t, dir, "web.yaml", serviceYAML("web", "ports: [{port: 80}]"))
	s, _ := newSource(t, opts)
	scan(t, s)

	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("state file %v, %v: want mode 0600", info, err)
	}
	if entries, _ := os.ReadDir(stateDir); len(entries) != 1 {
		t.Fatalf("files beside the state: %v", entries)
	}
	for _, data := range []string{"", "{", `{"version": 2}`} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("state %q: error %v, want one that names the file", data, err)
		}
	}
}

// TestReadOnly checks that a reader assigns what the source would, and leaves the state as it is.
func TestReadOnly(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	s, _ := newSource(t, opts)
	for _, name := range []string{"a", "c"} { // two records, which the end of a source makes one
		write(t, opts.Dir, name+".yaml", portYAML(name, 80))
		scan(t, s)
	}
	before, err := os.ReadFile(opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	write(t, opts.Dir, "b.yaml", portYAML("b", 80))
	reading := opts
	reading.ReadOnly = true
	reader, seen := newSource(t, reading)
	scan(t, reader)
	reader.end()
	if after, err := os.ReadFile(opts.StateFile); err != nil || string(after) != string(before) {
		t.Errorf("the state became %q, %v", after, err)
	}
	s, sink := newSource(t, opts)
	scan(t, s)
	if got, want := seen.services(), sink.services(); len(want) != 3 || !reflect.DeepEqual(got, want) {
		t.Errorf("a reader sees %v, want %v", got, want)
	}
}

// TestStateForgets checks that a Service that left its file leaves the state.
func TestStateForgets(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	s, _ := newSource(t, opts)
	for _, doc := range []string{portYAML("a", 80), portYAML("b", 80)} {
		write(t, opts.Dir, "x.yaml", doc)
		scan(t, s)
	}
	st, err := openState(opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	if _, ok := st.assigned[model.Name{Namespace: "default", Name: "b"}]; !ok || len(st.assigned) != 1 {
		t.Fatalf("the state has assignments %v, want one of default/b", st.assigned)
	}
}

// TestStateUnwritable checks that Services are served while the state cannot be
// kept, that the error says so, and that it goes once it can.
func TestStateUnwritable(t *testing.T) {
	dir, stateDir := t.TempDir(), filepath.Join(t.TempDir(), "later")
	opts := Options{Dir: dir, StateFile: filepath.Join(stateDir, "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	write(t, dir, "web.yaml", serviceYAML("web", "ports: [{port: 80}]"))
	s, sink := newSource(t, opts)
	scan(t, s)
	if len(sink.services()) != 1 || len(s.Errors()) != 1 {
		t.Fatalf("Services %v and errors %v, want one of each", sink.services(), s.Errors())
	}
	if err := os.Mkdir(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	scan(t, s)
	if errs := s.Errors(); len(errs) != 0 {
		t.Fatal(errs)
	}
	if _, err := os.Stat(opts.StateFile); err != nil {
		t.Fatal(err)
	}
	if n := len(sink.drain()); n != 1 {
		t.Fatalf("%d updates, want one: nothing changed after it", n)
	}
}

// TestRangesChangeAtRestart checks what a restart with other ranges does: without
// the range nothing is assigned but nothing forgotten, with another one Services
// keep what they have, and a second family is added where it is preferred.
func TestRangesChangeAtRestart(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state")}
	write(t, opts.Dir, "web.yaml", serviceYAML("web", "ipFamilyPolicy: PreferDualStack", "ports: [{port: 80}]"))
	var first netip.Addr
	for i, step := range []struct {
		ranges string
		count  int
	}{
		{"10.96.0.0/16", 1}, {"", 0}, {"10.97.0.0/16", 1}, {"10.97.0.0/16 fd96::/112", 2}, {"10.97.0.0/16", 1},
	} {
		opts.ServiceRanges = prefixes(step.ranges)
		s, sink := newSource(t, opts)
		scan(t, s)
		svc := sink.services()["default/web"]
		if step.count == 0 {
			if svc != nil || len(s.Errors()) != 1 || !strings.Contains(s.Errors()[0].Error(), rangeField) {
				t.Fatalf("without a range: %v, errors %v", svc, s.Errors())
			}
			continue
		}
		if len(s.Errors()) > 0 || len(svc.ClusterIPs) != step.count {
			t.Fatalf("step %d: cluster IPs %v and errors %v, want %d and none", i, svc.ClusterIPs, s.Errors(), step.count)
		}
		if i == 0 {
			first = svc.ClusterIPs[0]
		} else if svc.ClusterIPs[0] != first {
			t.Fatalf("step %d: the cluster IP is %s, it was %s", i, svc.ClusterIPs[0], first)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, opts := range []Options{
		{ServiceRanges: prefixes("10.96.0.0/16 10.97.0.0/16")},
		{ServiceRanges: prefixes("10.96.0.0/32")},
		{NodePortMin: 2, NodePortMax: 1},
		{NodePortMax: 1},
		{ServiceRanges: []netip.Prefix{{}}},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%+v is taken, want an error", opts)
		}
	}
}

// TestStateRecords changes the folder many times: the state file gets a record for each change,
// is written anew before it is mostly out of date, and each restart has what was. At the end
// of an agent it is one record, as agents read that know of no others.
func TestStateRecords(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	s, _ := newSource(t, opts)
	most := 0
	comment := "# " + strings.Repeat("x", 200<<10) + "\n"
	for i := range 20 {
		write(t, opts.Dir, "a.yaml", portYAML("a", 1+i)+comment)
		write(t, opts.Dir, fmt.Sprintf("%d.yaml", i), portYAML(fmt.Sprintf("s-%d", i), 80))
		scan(t, s)
		most = max(most, s.state.records)
		if i%5 != 4 {
			continue
		}
		again, _ := newSource(t, opts)
		again.recall(nil)
		if !reflect.DeepEqual(again.catalog.models(), s.catalog.models()) {
			t.Fatalf("after %d changes a restart has %v, want %v", i, again.catalog.models(), s.catalog.models())
		}
		again.state.close()
	}
	if size := stateSize(t, opts); most < 5 || size > 4<<20 {
		t.Errorf("%d records and %d bytes, want several and less than 4 MiB", most, size)
	}
	if err := os.Remove(filepath.Join(opts.Dir, "3.yaml")); err != nil {
		t.Fatal(err)
	}
	scan(t, s)
	s.end()
	data, err := os.ReadFile(opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	var one struct {
		Version  int
		Assigned map[string]assignment
		Files    map[string][]byte
	}
	if err := json.Unmarshal(data, &one); err != nil || one.Version != 1 || len(one.Assigned) != 20 || len(one.Files) != 20 {
		t.Errorf("version %d with %d assignments and %d files, want 1, 20 and 20; %v", one.Version, len(one.Assigned), len(one.Files), err)
	}
	if text := string(one.Files["a.yaml"]); text != portYAML("a", 20)+comment {
		t.Errorf("a.yaml is %d bytes of another content", len(text))
	}
}

// TestStateCutShort: a record that a crash cut short is as one that was never written, and the
// next one takes its place. One that is broken in the middle is an error.
func TestStateCutShort(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	s, _ := newSource(t, opts)
	write(t, opts.Dir, "a.yaml", portYAML("a", 1))
	scan(t, s)
	first := stateSize(t, opts)
	write(t, opts.Dir, "a.yaml", portYAML("a", 2))
	scan(t, s)
	whole, err := os.ReadFile(opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	for size := first; size < int64(len(whole)); size += 29 {
		for _, tail := range []string{"", strings.Repeat("\x00", 100)} {
			write(t, filepath.Dir(opts.StateFile), "state", string(whole[:size])+tail)
			cut, sink := newSource(t, opts)
			cut.recall(nil)
			cut.send()
			if got := sink.services()["default/a"]; got == nil || got.Ports[0].Port != 1 {
				t.Fatalf("cut to %d bytes it has %+v, want port 1", size, got)
			}
			scan(t, cut)
			if again, err := openState(opts.StateFile); err != nil || again.records != 2 {
				t.Fatalf("cut to %d bytes and written again: %v", size, err)
			} else {
				again.close()
			}
			cut.state.close()
		}
	}
	broken := strings.Replace(string(whole), "\n{", "\n<", 1) + "\n" + string(whole[first+1:])
	write(t, filepath.Dir(opts.StateFile), "state", broken)
	if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "restore it from a copy") {
		t.Errorf("error %v, want one that says what to do", err)
	}
}

// TestStateTakenAway: a state file that somebody removes is written anew.
func TestStateTakenAway(t *testing.T) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"), ServiceRanges: prefixes("10.96.0.0/16")}
	s, _ := newSource(t, opts)
	write(t, opts.Dir, "a.yaml", portYAML("a", 1))
	write(t, opts.Dir, "b.yaml", portYAML("b", 1))
	scan(t, s)
	write(t, opts.Dir, "b.yaml", "broken: [")
	if err := os.Remove(opts.StateFile); err != nil {
		t.Fatal(err)
	}
	write(t, opts.Dir, "a.yaml", portYAML("a", 2))
	scan(t, s)
	s.end()
	again, _ := newSource(t, opts)
	again.recall(nil)
	if got := again.catalog.models(); len(got) != 2 {
		t.Errorf("after a restart there is %v, want a and b", got)
	}
}
